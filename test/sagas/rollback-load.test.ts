import { expect, it } from 'vitest';
import { useGateway } from '../support/use-gateway.ts';
import { runRollbackLoad } from './rollback-load.ts';
import { buildSagaPolicies } from './saga-policies.ts';

const { upstream, gateway } = useGateway({ policies: buildSagaPolicies });

it('rolls 100 sagas of five steps back at once, each in order and once', async () => {
  const { violations, undos } = await runRollbackLoad([gateway], upstream, { sagas: 100, steps: 5, name: 'load' });
  expect(violations).toEqual([]);
  expect(undos).toBe(500);
});
