import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { describe, expect, it } from 'vitest';

/** Metaphors that the code once used, as words of a name. GLOSSARY.md has the words that replaced them. */
const RETIRED_WORDS = new Set([
  'carried',
  'carry',
  'errand',
  'errands',
  'face',
  'finals',
  'follower',
  'hurry',
  'insist',
  'legible',
  'lookout',
  'manner',
  'most',
  'outlook',
  'past',
  'place',
  'purse',
  'retell',
  'station',
  'stint',
  'stray',
  'strays',
  'switches',
  'tongue',
  'turnstile',
  'walk',
  'wish',
  'wishes',
]);
/** Words that are fine in other names. */
const RETIRED_NAMES = new Set([
  'CallFace',
  'CallSummary',
  'CallUpdate',
  'Intent',
  'Job',
  'JobSource',
  'Watch',
  'buildBaseUpdate',
  'buildClosingUpdate',
  'createJob',
  'job.ts',
  'letGo',
  'resumeJob',
  'summarizeCall',
  'toCallSummary',
]);

const FOLDERS = ['gateway', 'adapters', 'console', 'clients/src', 'bench', 'demo'];
const EXPORT = /^export (?:declare )?(?:async )?(?:abstract )?(?:function|class|interface|type|const) (\w+)/gm;

interface ExportedName {
  readonly file: string;
  readonly name: string;
}

function listSources(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((file) => /\.(ts|js|mjs)$/.test(file) && !file.includes('node_modules'))
    .map((file) => join(folder, file));
}

function listExports(folder: string): ExportedName[] {
  return listSources(folder).flatMap((file) =>
    [...readFileSync(file, 'utf8').matchAll(EXPORT)].map(([, name = '']) => ({ file, name })),
  );
}

/** `MAX_LOCK_SEGMENTS`, `maxLockSegments` and `max-lock-segments` all have the words max, lock and segments. */
function splitWords(name: string): string[] {
  return name
    .replaceAll(/([a-z0-9])([A-Z])/g, '$1_$2')
    .split(/[_.-]/)
    .map((word) => word.toLowerCase());
}

const isRetired = (name: string) => RETIRED_NAMES.has(name) || splitWords(name).some((word) => RETIRED_WORDS.has(word));

describe('the glossary', () => {
  it('has no more than 60 terms, each once', () => {
    const rows = readFileSync('GLOSSARY.md', 'utf8').matchAll(/^\| (?!term |---)([^|]+) \|/gm);
    const terms = [...rows].map((row) => row[1]);
    expect(terms.length).toBeLessThanOrEqual(60);
    expect(new Set(terms).size).toBe(terms.length);
  });

  it.each(FOLDERS)('has replaced the retired words in the exports and file names of %s', (folder) => {
    expect(listExports(folder).length).toBeGreaterThan(5);
    expect(listExports(folder).filter(({ name }) => isRetired(name))).toEqual([]);
    expect(listSources(folder).filter((file) => isRetired(basename(file)))).toEqual([]);
  });

  // A re-export (`export { name } from …`) is not a declaration, so it does not count.
  it('has one declaration for each name that gateway and adapters export', () => {
    const files = new Map<string, Set<string>>();
    for (const { file, name } of [...listExports('gateway'), ...listExports('adapters')])
      files.set(name, (files.get(name) ?? new Set()).add(file));
    const shared = [...files].filter(([, each]) => each.size > 1).map(([name, each]) => ({ name, files: [...each] }));
    expect(shared).toEqual([]);
  });
});
