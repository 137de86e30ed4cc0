import { expect, it } from 'vitest';
import { useGateway } from '../support/use-gateway.ts';
import { buildSagaPolicies } from './saga-policies.ts';

const { upstream, gateway } = useGateway({ policies: buildSagaPolicies, start: false });

it.each(['undoing', 'claimed:2', 'sending:2', 'answered:2', 'settled:2', 'marked'])(
  'a person undoes a call once, although the gateway dies at %s',
  async (point) => {
    const id = `undo-${point}`;
    await gateway.start({ ONCEGATE_DIE_AT: point });
    const { txn } = (await gateway.call('world.charge', { id }, { key: id })).body;
    const pending = gateway.admin('POST', `/admin/calls/${txn}/undo`, { reason: 'a mistake' }).catch(() => undefined);
    expect(await gateway.waitForExit()).toMatchObject({ signal: 'SIGKILL' });
    await pending;
    await gateway.start();
    await gateway.waitForCall(txn, (call) => call.undo.state === 'done');
    const routes = (await upstream.effects(id)).map((effect) => effect.route);
    expect(routes).toEqual(['POST /keyed/charge', 'POST /keyed/refund']);
    await gateway.kill();
  },
);
