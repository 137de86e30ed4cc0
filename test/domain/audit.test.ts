import { expect, it } from 'vitest';
import { buildAuditEntry, sha256Hex } from '../../gateway/domain/audit/audit.ts';

it('an entry is the canonical JSON of its fields', () => {
  const entry = buildAuditEntry('denied', { tool: 'a\0b', agent: 'x', rule: undefined }, 0);
  expect(entry).toBe('{"agent":"x","at":"1970-01-01T00:00:00.000Z","tool":"a\\u0000b","what":"denied"}');
});

it.each([4_096, 4_097, 1_000_000])('an entry truncates a long tool name: %i characters', (length) => {
  const tool = `${'n'.repeat(1_023)}😀`.padEnd(length, 'n');
  const { tool: logged } = JSON.parse(buildAuditEntry('denied', { tool }));
  if (length === 4_096) return expect(logged).toBe(tool);
  expect(logged).toBe(`${'n'.repeat(1_023)}\uFFFD… (${length} characters, sha256 ${sha256Hex(tool)})`);
});
