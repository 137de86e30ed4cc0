import { randomUUID } from 'node:crypto';
import type { Database } from './db.ts';

/** The id of this deployment, created with the database. All replicas share it, because it is part of every txn. */
export async function ensureDeploymentId(db: Database): Promise<string> {
  await insertDeploymentId(db, randomUUID());
  const id = await readDeploymentId(db);
  if (id === undefined) throw new Error('The table "deployment" is empty: another process deleted its row.');
  return id;
}

/** The first replica to insert decides the id. The table allows one row, so every later insert does nothing. */
async function insertDeploymentId(db: Database, id: string): Promise<void> {
  await db.run({
    name: 'insert-deployment-id',
    text: 'insert into deployment (id) values ($1) on conflict do nothing',
    values: [id],
  });
}

/** Runs after the insert, so it sees the id of the replica that was first. */
async function readDeploymentId(db: Database): Promise<string | undefined> {
  const rows = await db.run<{ id: string }>({
    name: 'read-deployment-id',
    text: 'select id from deployment',
    values: [],
  });
  return rows[0]?.id;
}
