import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';

/** Metaphors that the code once used. GLOSSARY.md has the words that replaced them. */
const RETIRED = new Set(
  [
    'station',
    'stint',
    'wish',
    'turnstile',
    'errand',
    'lookout',
    'tongue',
    'purse',
    'legible',
    'retell',
    'stray',
  ].concat([
    'strays',
    'insist',
    'hurry',
    'face',
    'manner',
    'follower',
    'outlook',
    'finals',
    'carried',
    'carry',
    'most',
    'switches',
  ]),
);

const EXPORT = /^export (?:async )?(?:abstract )?(?:function|class|interface|type|const) (\w+)/gm;

function exportsOf(directory: string): { readonly file: string; readonly name: string }[] {
  const files = readdirSync(directory, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'));
  return files.flatMap((relative) => {
    const file = join(directory, relative);
    return [...readFileSync(file, 'utf8').matchAll(EXPORT)].map((match) => ({ file, name: match[1] ?? '' }));
  });
}

/** `MAX_LOCK_SEGMENTS` and `maxLockSegments` both have the words max, lock and segments. */
function wordsOf(name: string): string[] {
  return name
    .replaceAll(/([a-z0-9])([A-Z])/g, '$1_$2')
    .split('_')
    .map((word) => word.toLowerCase());
}

describe('the glossary', () => {
  it('has no more than 60 terms, each once', () => {
    const rows = readFileSync('GLOSSARY.md', 'utf8').matchAll(/^\| (?!term |---)([^|]+) \|/gm);
    const terms = [...rows].map((row) => row[1]);
    expect(terms.length).toBeLessThanOrEqual(60);
    expect(new Set(terms).size).toBe(terms.length);
  });

  it.each(['gateway', 'adapters'])('has replaced the retired words in what %s exports', (directory) => {
    const retired = exportsOf(directory).filter(({ name }) => wordsOf(name).some((word) => RETIRED.has(word)));
    expect(retired).toEqual([]);
  });
});
