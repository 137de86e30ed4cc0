import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { SchemaError } from './schema-error.ts';

const NO_LIVE_REPLICAS = 'no live replicas';

export interface Migration {
  readonly version: number;
  /** The name of the file. */
  readonly name: string;
  /** The name without its ending, for people. */
  readonly title: string;
  readonly sql: string;
  readonly sha256: string;
  /** The SQL moves a limited number of rows and is repeated until none is left. */
  readonly isBatched: boolean;
  /** Counts all rows that a batched migration will move, for its progress. */
  readonly totalQuery: string | undefined;
  readonly refusesLiveReplicas: boolean;
}

/** Reads all migrations of the directory in the order of their numbers. */
export async function readMigrations(directory: string): Promise<Migration[]> {
  const files = (await readdir(directory)).filter((file) => /^\d{4}_.+\.sql$/.test(file)).sort();
  return Promise.all(files.map(async (file) => parseMigration(file, await readFile(join(directory, file), 'utf8'))));
}

/**
 * Reads what a migration declares in its first lines: `-- requires: no live replicas`, and in a batched one
 * `-- total: select …`. A misspelt declaration would be ignored as a comment, so every `-- word:` there must be known.
 */
function parseMigration(name: string, sql: string): Migration {
  const isBatched = name.endsWith('.batch.sql');
  const declared = new Map<string, string>();
  for (const line of sql.split('\n')) {
    if (!line.startsWith('--')) break;
    const [, key = '', value = ''] = /^-- ([a-z]+): (.*)$/.exec(line.trimEnd()) ?? [];
    if (key === '') continue;
    const isKnown = key === 'requires' ? value === NO_LIVE_REPLICAS : key === 'total' && isBatched;
    if (!isKnown) {
      throw new SchemaError(
        `${name} declares "${key}: ${value}". A migration can declare "requires: ${NO_LIVE_REPLICAS}", and a batched one "total: <query>".`,
      );
    }
    declared.set(key, value);
  }
  return {
    version: Number(name.slice(0, 4)),
    name,
    title: name.replace(/(\.batch)?\.sql$/, ''),
    sql,
    sha256: createHash('sha256').update(sql).digest('hex'),
    isBatched,
    totalQuery: declared.get('total'),
    refusesLiveReplicas: declared.has('requires'),
  };
}
