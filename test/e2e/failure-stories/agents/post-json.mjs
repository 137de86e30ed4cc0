/** Creates the function with which an agent process posts JSON to its gateway. */
export function createPost(gateway, agentKey) {
  return async (path, body, headers = {}) => {
    const response = await fetch(gateway + path, {
      method: 'POST',
      headers: { authorization: `Bearer ${agentKey}`, 'content-type': 'application/json', ...headers },
      body: JSON.stringify(body),
    });
    return { status: response.status, body: await response.json() };
  };
}
