import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import type { EffectJournal } from './effect-journal.ts';
import { ServiceError } from './service-answers.ts';

const fileBody = z.object({ content: z.string() });
const restoreBody = z.object({ content: z.string().nullable() });
const byName = z.object({ name: z.string() });

/** A file store. Repeating a put, a delete or a restore changes nothing. */
export function registerFiles(app: FastifyInstance, journal: EffectJournal): void {
  app.put('/:name', async (request) => {
    const { name } = byName.parse(request.params);
    const { content } = fileBody.parse(request.body);
    await journal.record(() => ({ did: 'put_file', name, content }));
    return { name, size: Buffer.byteLength(content) };
  });

  app.get('/:name', async (request) => {
    const { name } = byName.parse(request.params);
    const content = (await journal.readState()).files.get(name);
    if (content === undefined) throw new ServiceError(404, 'no_such_file', `There is no file ${name}.`);
    return { name, content };
  });

  app.get('/', async () => {
    const all = [...(await journal.readState()).files];
    return { files: all.map(([name, content]) => ({ name, size: Buffer.byteLength(content) })) };
  });

  app.delete('/:name', async (request) => {
    const { name } = byName.parse(request.params);
    await journal.record((state) => (state.files.has(name) ? { did: 'delete_file', name } : undefined));
    return { name, exists: false };
  });

  /** Restores old content; `null` means that the file did not exist. */
  app.post('/:name/restore', async (request) => {
    const { name } = byName.parse(request.params);
    const { content } = restoreBody.parse(request.body);
    await journal.record(() => ({ did: 'restore_file', name, content }));
    return { name, exists: content !== null };
  });
}
