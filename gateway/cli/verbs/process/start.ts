import type { Verb } from '../../verb.ts';

export const startVerb: Verb = {
  name: 'start',
  summary: 'run the gateway until a signal ends it',
  run: async () => {
    // Imported only here: no other verb should wait for the web server to load.
    const { runGateway } = await import('../../../server.ts');
    await runGateway();
    return Number(process.exitCode ?? 0);
  },
};
