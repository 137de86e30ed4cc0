import { askGateway } from '../../ask-gateway.ts';
import { REASON, reasonOf } from '../../reason-option.ts';
import { UsageError, type Verb } from '../../verb.ts';
import { tellPlan } from './rollback-plan.ts';
import { followRollback } from './rollback-progress.ts';
import { sagaAdvice, sagaId, sagaPath } from './saga-text.ts';

export const rollbackVerb: Verb = {
  name: 'rollback',
  summary: 'undo a saga, or show how it would be undone',
  operands: [{ name: 'saga' }],
  options: {
    to: { value: 'SAVEPOINT', help: 'only what came after it; the saga stays open' },
    'dry-run': { help: 'show what would be undone, in which order; do nothing' },
    digest: { value: 'HEX', help: 'of a dry run: undo exactly what it showed, or nothing' },
    reason: { ...REASON, required: false, help: `${REASON.help}; a dry run needs none` },
  },
  run: async (invocation) => {
    const { io, out, operands, text, flag } = invocation;
    if (!flag('dry-run') && text('reason') === undefined)
      throw new UsageError('--reason TEXT is missing (or add --dry-run to see what would be done)');
    const id = sagaId(operands[0] ?? '');
    const to = text('to');
    const reach = to === undefined ? {} : { to };
    const digest = text('digest');
    const shown = digest === undefined ? {} : { digest };
    if (!flag('dry-run'))
      return followRollback(invocation, id, 'rollback', { ...reach, ...shown, reason: reasonOf(invocation) });
    const plan = await askGateway(io, `${sagaPath(id)}/rollback`, {
      method: 'POST',
      body: { ...reach, dryRun: true },
      advice: sagaAdvice(id),
    });
    out.json(plan);
    return tellPlan(out, plan);
  },
};
