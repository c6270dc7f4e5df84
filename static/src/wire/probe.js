/**
 * Asks the server over plain HTTP how it is. A browser does not say why a WebSocket was refused,
 * so this is how the page tells a missing key from a loading model from no server at all.
 */

/**
 * @typedef {{kind: "ready", model: string|null, contextLength: number}
 *   | {kind: "loading"}
 *   | {kind: "key"}
 *   | {kind: "refused", message: string}
 *   | {kind: "unreachable"}} Finding
 */

const PATIENCE_MS = 10_000;

/**
 * @param {string} key empty for none
 * @returns {Promise<Finding>}
 */
export async function probe(key) {
  try {
    const health = await get("./health", "");
    if (health.status === 503) return { kind: "loading" };
    const models = await get("./v1/models", key);
    if (models.status === 401) return { kind: "key" };
    if (models.status === 503) return { kind: "loading" };
    const body = await models.json().catch(() => null);
    if (!models.ok) {
      const message = body?.error?.message;
      const words = typeof message === "string" ? message : `HTTP ${models.status}`;
      return { kind: "refused", message: words };
    }
    const model = body?.data?.[0]?.id;
    const contextLength = Number(body?.data?.[0]?.context_length) || 0;
    return { kind: "ready", model: typeof model === "string" ? model : null, contextLength };
  } catch {
    return { kind: "unreachable" };
  }
}

/**
 * @param {string} path
 * @param {string} key
 */
function get(path, key) {
  return fetch(path, {
    headers: key ? { Authorization: `Bearer ${key}` } : {},
    cache: "no-store",
    credentials: "same-origin",
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
}
