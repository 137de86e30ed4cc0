import { join } from 'node:path';
import { findPackageRoot } from '../../package-root.ts';
import { loadConfig } from '../../policy-directory.ts';
import { type Verb, VerbError } from '../../verb.ts';

export const migrateVerb: Verb = {
  name: 'migrate',
  summary: 'migrate the database at DATABASE_URL to the newest schema',
  run: async ({ io, out }) => {
    const { url } = (await loadConfig(io)).database;
    if (url === undefined) {
      out.printLine(
        'Nothing to do: DATABASE_URL is not set, and the gateway migrates its embedded PostgreSQL at start.',
      );
      out.printJson({ good: true, database: 'embedded', applied: [] });
      return 0;
    }
    const applied = await migrate(url, (line) => out.printNote(line));
    for (const name of applied) out.printLine(`applied ${name}`);
    out.printLine(applied.length === 0 ? 'The schema is already the newest.' : 'The schema is now the newest.');
    out.printJson({ good: true, database: 'server', applied });
    return 0;
  },
};

async function migrate(url: string, log: (line: string) => void): Promise<readonly string[]> {
  const { migrateDatabase } = await import('../../../ledger/migrate.ts');
  try {
    return await migrateDatabase(url, join(findPackageRoot(), 'migrations'), log);
  } catch (error) {
    // Node reports a host with several addresses as an AggregateError, whose message is empty.
    const { message, code } = error as NodeJS.ErrnoException;
    const why = message || code || 'unknown reason';
    throw new VerbError(
      'not_migrated',
      `The database at DATABASE_URL (${formatDatabaseLocation(url)}) was not migrated: ${why}`,
    );
  }
}

/** Host and database name, without user and password. */
function formatDatabaseLocation(url: string): string {
  try {
    const { host, pathname } = new URL(url);
    return `${host}${pathname}`;
  } catch {
    return 'not a URL';
  }
}
