import { GatewayError } from '../../domain/errors.ts';
import { ExpressionError, type ExpressionScope, type Rule } from '../../domain/policy.ts';
import type { LimitCharge, LimitExceeded } from '../../ledger/calls/limits.ts';

export function hasLimits({ rate, budget }: Rule): boolean {
  return rate !== undefined || budget !== undefined;
}

/** What a call consumes of the limits of its rule. If the amount of a budget cannot be computed, the call is denied. */
export function computeCharges(rule: Rule, scope: ExpressionScope): LimitCharge[] {
  const charges: LimitCharge[] = [];
  if (rule.rate !== undefined) {
    charges.push({
      kind: 'rate',
      bucket: `${rule.bucket}/rate`,
      amount: 1,
      max: rule.rate.limit,
      perMs: rule.rate.perMs,
    });
  }
  if (rule.budget !== undefined) {
    const { sum, max, perMs } = rule.budget;
    charges.push({
      kind: 'budget',
      bucket: `${rule.bucket}/budget`,
      amount: computeAmount(rule, () => sum(scope)),
      max,
      perMs,
    });
  }
  return charges;
}

function computeAmount(rule: Rule, sum: () => unknown): number {
  try {
    const amount = sum();
    if (typeof amount === 'number' && Number.isFinite(amount)) return Math.max(0, amount);
    throw new ExpressionError('the amount is not a number');
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error;
    throw new GatewayError('denied', `The budget of ${rule.id} cannot be computed: ${error.message}`, {
      members: { rule: rule.id },
    });
  }
}

export function buildLimitExceededError({ charge, used, waitMs }: LimitExceeded, rule: string): GatewayError {
  const after = waitMs === null ? {} : { retryAfterSeconds: Math.max(1, Math.ceil(waitMs / 1000)) };
  const window = `${charge.max} in ${charge.perMs / 1000} s`;
  if (charge.kind === 'rate')
    return new GatewayError('rate_limited', `${rule} allows ${window}, and the limit is used up.`, {
      ...after,
      members: { rule },
    });
  const detail =
    waitMs === null
      ? `${rule} allows ${window}. This call needs ${charge.amount}, so it can never fit.`
      : `${rule} allows ${window}. ${used} is used, and this call needs ${charge.amount} more.`;
  return new GatewayError('over_budget', detail, {
    ...after,
    ...(waitMs === null ? { retry: 'never' as const } : {}),
    members: { rule },
  });
}
