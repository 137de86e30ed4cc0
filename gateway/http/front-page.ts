/** What stands at `/` until the console does: what this is and how to make the first call. */
export function frontPage(version: string, origin: string): string {
  const url = origin.replaceAll(/[^\w.:/[\]-]/g, '');
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Oncegate</title>
<style>
  :root { color-scheme: light dark; }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem; }
  h1 { font-size: 1.6rem; margin-bottom: 0; }
  pre { padding: .8rem 1rem; overflow-x: auto; border: 1px solid color-mix(in srgb, currentColor 25%, transparent); border-radius: 6px; }
  code { font: .9em ui-monospace, monospace; }
  small { opacity: .7; }
</style>
<h1>Oncegate</h1>
<p><small>version ${version}</small></p>
<p>Every tool call of your AI agents passes through here. A call happens once, however often it is retried and whatever
crashes; an agent can do only what its policy allows; and what is not known is said to be unknown.</p>
<h2>The first call</h2>
<p>The terminal in which the gateway runs shows the key of the demo agent. With it:</p>
<pre><code>curl -X POST ${url}/v1/tools/payments.charge \\
  -H "Authorization: Bearer &lt;agent key&gt;" \\
  -H "Idempotency-Key: order-2001" \\
  -H "Content-Type: application/json" \\
  -d '{"amount": 1200, "currency": "usd", "card": "card_visa"}'</code></pre>
<p>Send it twice: the second answer is the first one, marked <code>"replayed": true</code>, and the card was charged once.</p>
<h2>Where to look</h2>
<ul>
  <li><a href="/openapi.json">/openapi.json</a>: the API</li>
  <li><a href="/readyz">/readyz</a>: whether calls are served, and what is not as it should be</li>
  <li><code>GET /v1/tools</code> with an agent's key: what that agent may call</li>
  <li><code>npx oncegate help</code>: calls, doubts and policies from the command line</li>
</ul>
</html>
`;
}
