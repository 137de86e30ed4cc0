import { join } from 'node:path';
import { packageRoot } from '../../package-root.ts';
import { configOf } from '../../policies.ts';
import { NotGood, type Verb } from '../../verb.ts';

export const migrateVerb: Verb = {
  name: 'migrate',
  summary: 'bring the database of DATABASE_URL to the newest schema',
  run: async ({ io, out }) => {
    const { url } = (await configOf(io)).database;
    if (url === undefined) {
      out.line('DATABASE_URL is not set: the embedded PostgreSQL migrates itself at start, so nothing is to be done.');
      out.json({ good: true, database: 'embedded', applied: [] });
      return 0;
    }
    const applied = await migrated(url);
    for (const name of applied) out.line(`applied ${name}`);
    out.line(applied.length === 0 ? 'the schema is the newest already' : 'the schema is the newest now');
    out.json({ good: true, database: 'server', applied });
    return 0;
  },
};

async function migrated(url: string): Promise<readonly string[]> {
  const { migrateDatabase: bringUp } = await import('../../../ledger/migrate.ts');
  try {
    return await bringUp(url, join(packageRoot(), 'migrations'));
  } catch (error) {
    // A name that resolves to two addresses fails twice, with an empty message.
    const { message, code } = error as NodeJS.ErrnoException;
    const why = message || code || 'no reason given';
    throw new NotGood('not_migrated', `the database of DATABASE_URL (${placeOf(url)}) was not migrated: ${why}`);
  }
}

/** Where it is, without who and with which password. */
function placeOf(url: string): string {
  try {
    const { host, pathname } = new URL(url);
    return `${host}${pathname}`;
  } catch {
    return 'not a URL';
  }
}
