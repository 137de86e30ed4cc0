import { requestGateway } from '../../gateway-client.ts';
import { REASON_OPTION, readReason } from '../../reason-option.ts';
import { UsageError, type Verb } from '../../verb.ts';
import { printPlan } from './rollback-plan.ts';
import { runRollback } from './rollback-progress.ts';
import { buildSagaAdvice, buildSagaPath, parseSagaId } from './saga-text.ts';

export const rollbackVerb: Verb = {
  name: 'rollback',
  summary: 'undo a saga, or show the plan with --dry-run',
  operands: [{ name: 'saga' }],
  options: {
    to: { value: 'SAVEPOINT', help: 'undo only the steps after this savepoint; the saga stays open' },
    'dry-run': { help: 'show what would be undone, in which order' },
    digest: { value: 'HEX', help: 'digest of a dry run: undo exactly its plan, or nothing' },
    reason: { ...REASON_OPTION, required: false, help: `${REASON_OPTION.help}; not needed with --dry-run` },
  },
  run: async (invocation) => {
    const { io, out, operands, text, hasFlag } = invocation;
    if (!hasFlag('dry-run') && text('reason') === undefined)
      throw new UsageError('--reason TEXT is missing (or add --dry-run to see the plan)');
    const id = parseSagaId(operands[0] ?? '');
    const to = text('to');
    const target = to === undefined ? {} : { to };
    const digest = text('digest');
    const expected = digest === undefined ? {} : { digest };
    if (!hasFlag('dry-run'))
      return runRollback(invocation, id, 'rollback', { ...target, ...expected, reason: readReason(invocation) });
    const plan = await requestGateway(io, `${buildSagaPath(id)}/rollback`, {
      method: 'POST',
      body: { ...target, dryRun: true },
      advice: buildSagaAdvice(id),
    });
    out.printJson(plan);
    return printPlan(out, plan);
  },
};
