// Recipes import packages that their users install. In tests, frameworks come from this directory and the client from its build.
import { registerHooks } from 'node:module';

const client = new URL('../../clients/dist/index.js', import.meta.url).href;
const recipes = new URL('../../clients/recipes/', import.meta.url).href;

registerHooks({
  resolve(specifier, context, next) {
    if (specifier === '@oncegate/client') return next(client, context);
    const parentURL = context.parentURL?.startsWith(recipes) ? import.meta.url : context.parentURL;
    return next(specifier, { ...context, parentURL });
  },
});
