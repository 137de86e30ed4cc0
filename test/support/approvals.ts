import { ADMIN_KEY, type Gateway, type Reply } from './gateway.ts';

/** The approval of a held call, or undefined if there is none in this state. */
export async function findApproval(gateway: Gateway, txn: string, state = 'pending'): Promise<Reply['body']> {
  const { items } = (await gateway.admin('GET', `/admin/approvals?state=${state}`)).body;
  return items.find((item: { txn: string }) => item.txn === txn);
}

/** Decides on a held call as a person does, with the digest that the gateway shows now. */
export async function decideApproval(
  gateway: Gateway,
  txn: string,
  verdict: 'approve' | 'reject' = 'approve',
  key = ADMIN_KEY,
): Promise<Reply> {
  const { digest } = await findApproval(gateway, txn);
  return gateway.post(`/admin/approvals/${txn}/${verdict}`, { reason: `${verdict} it`, digest }, key);
}
