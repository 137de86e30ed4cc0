import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { expect, it } from 'vitest';

const pages = execFileSync('git', ['ls-files', '*.md'], { encoding: 'utf8' }).trim().split('\n');

/** The anchor that a heading gets on GitHub. */
function anchorOf(heading: string): string {
  return heading
    .replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1')
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
    .trim()
    .replaceAll(' ', '-');
}

function withoutCode(text: string): string {
  return text.replaceAll(/^```[\s\S]*?^```/gm, '').replaceAll(/`[^`\n]*`/g, (code) => code.replaceAll(/[[\]()]/g, ''));
}

function anchorsOf(page: string): string[] {
  return [...withoutCode(readFileSync(page, 'utf8')).matchAll(/^#+ (.+)$/gm)].map((match) => anchorOf(match[1] ?? ''));
}

/** A path of the project in backticks; `NNNN` and `…` stand for something, `*` for anything. */
const NAMED_PATH =
  /`((?:adapters|bench|bin|clients|console|demo|deploy|docs|gateway|migrations|policies|test)\/[\w./-]+)`/g;

it.each(pages)('every path that %s names exists', (page) => {
  const text = readFileSync(page, 'utf8').replaceAll(/^```[\s\S]*?^```/gm, '');
  const paths = [...text.matchAll(NAMED_PATH)].map((match) => match[1] ?? '').filter((path) => !path.includes('NNNN'));
  expect(paths.filter((path) => !existsSync(path))).toEqual([]);
});

it.each(pages)('every relative link of %s leads somewhere', (page) => {
  const links = [...withoutCode(readFileSync(page, 'utf8')).matchAll(/\]\(([^)\s]+)\)/g)].map(
    (match) => match[1] ?? '',
  );
  const broken = links.filter((link) => {
    if (/^[a-z]+:/.test(link)) return false;
    const [path = '', anchor] = link.split('#');
    const target = path === '' ? page : normalize(join(dirname(page), path));
    if (!existsSync(target)) return true;
    if (anchor === undefined || statSync(target).isDirectory() || !target.endsWith('.md')) return false;
    return !anchorsOf(target).includes(anchor);
  });
  expect(broken).toEqual([]);
});
