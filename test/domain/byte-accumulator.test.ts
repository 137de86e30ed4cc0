import { describe, expect, it } from 'vitest';
import { ByteAccumulator } from '../../gateway/domain/byte-accumulator.ts';

describe('gathered bytes', () => {
  it('are what came, in the order in which it came', () => {
    const gathered = new ByteAccumulator();
    for (const piece of ['a', '', 'bcd', 'x'.repeat(3_000), 'é', 'end']) gathered.append(Buffer.from(piece));
    expect(gathered.length).toBe(3_009);
    expect(gathered.take().toString('utf8')).toBe(`abcd${'x'.repeat(3_000)}éend`);
  });

  it('are none when nothing came', () => {
    expect(new ByteAccumulator().take()).toEqual(Buffer.alloc(0));
  });

  it('begin anew after they were taken, and leave alone what was taken', () => {
    const gathered = new ByteAccumulator();
    gathered.append(Buffer.from('one'));
    const taken = gathered.take();
    expect(gathered.length).toBe(0);
    gathered.append(Buffer.from('two'));
    expect([taken.toString(), gathered.take().toString()]).toEqual(['one', 'two']);
  });

  it('are a copy: who gave them may use the memory again', () => {
    const gathered = new ByteAccumulator();
    const piece = Buffer.from('kept');
    gathered.append(piece);
    piece.fill('!');
    expect(gathered.take().toString()).toBe('kept');
  });

  it('hold about as much memory as there are bytes, though each comes alone in a slab of its own', () => {
    const gathered = new ByteAccumulator();
    for (let i = 0; i < 4_000; i++) gathered.append(Buffer.allocUnsafeSlow(65_536).subarray(0, 1));
    expect(gathered.take().buffer.byteLength).toBeLessThanOrEqual(8_192);
  });
});
