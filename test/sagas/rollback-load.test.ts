import { expect, it } from 'vitest';
import { useGateway } from '../support/use-gateway.ts';
import { runRollbackLoad } from './rollback-load.ts';
import { buildSagaPolicies } from './saga-policies.ts';

const { upstream, gateway } = useGateway({ policies: buildSagaPolicies });

it('100 sagas of five steps roll back at once, each step once and in order', async () => {
  const { violations, undos } = await runRollbackLoad([gateway], upstream, { sagas: 100, steps: 5, name: 'load' });
  expect(violations).toEqual([]);
  expect(undos).toBe(500);
});
