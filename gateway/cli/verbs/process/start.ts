import type { Verb } from '../../verb.ts';

export const startVerb: Verb = {
  name: 'start',
  summary: 'run the gateway',
  run: async () => {
    // Imported here, so that no other verb waits for the web server to load.
    const { runGateway } = await import('../../../server.ts');
    await runGateway();
    return Number(process.exitCode ?? 0);
  },
};
