import { randomUUID } from 'node:crypto';
import type { Database } from './db.ts';

/** The deployment's own id, made with the database and the same for every replica: it goes into every txn. */
export async function ensureDeploymentId(db: Database): Promise<string> {
  await db.run({
    name: 'make-deployment',
    text: 'insert into deployment (id) values ($1) on conflict do nothing',
    values: [randomUUID()],
  });
  const rows = await db.run<{ id: string }>({ name: 'deployment', text: 'select id from deployment', values: [] });
  const id = rows[0]?.id;
  if (id === undefined) throw new Error('the deployment has no id');
  return id;
}
