import { describe, expect, it } from 'vitest';
import { ByteAccumulator } from '../../gateway/domain/byte-accumulator.ts';

describe('a byte accumulator', () => {
  it('returns all bytes in order', () => {
    const accumulator = new ByteAccumulator();
    for (const chunk of ['a', '', 'bcd', 'x'.repeat(3_000), 'é', 'end']) accumulator.append(Buffer.from(chunk));
    expect(accumulator.length).toBe(3_009);
    expect(accumulator.take().toString('utf8')).toBe(`abcd${'x'.repeat(3_000)}éend`);
  });

  it('returns an empty buffer without chunks', () => {
    expect(new ByteAccumulator().take()).toEqual(Buffer.alloc(0));
  });

  it('is empty after take, and never changes a taken buffer', () => {
    const accumulator = new ByteAccumulator();
    accumulator.append(Buffer.from('one'));
    const taken = accumulator.take();
    expect(accumulator.length).toBe(0);
    accumulator.append(Buffer.from('two'));
    expect([taken.toString(), accumulator.take().toString()]).toEqual(['one', 'two']);
  });

  it('copies the chunk, so that its memory can be reused', () => {
    const accumulator = new ByteAccumulator();
    const chunk = Buffer.from('kept');
    accumulator.append(chunk);
    chunk.fill('!');
    expect(accumulator.take().toString()).toBe('kept');
  });

  it('needs about as much memory as bytes, although each byte arrives in its own slab', () => {
    const accumulator = new ByteAccumulator();
    for (let i = 0; i < 4_000; i++) accumulator.append(Buffer.allocUnsafeSlow(65_536).subarray(0, 1));
    expect(accumulator.take().buffer.byteLength).toBeLessThanOrEqual(8_192);
  });
});
