/**
 * Fields that make answers better but need not be granted: a server that does not know one refuses
 * the request by its name, and is asked again without it.
 */

const WISHES = { background: true, return_progress: true };

/** @type {Set<string>} until the page is loaded anew */
const refused = new Set();

/** @returns {Partial<typeof WISHES>} */
export function wishes() {
  return Object.fromEntries(Object.entries(WISHES).filter(([name]) => !refused.has(name)));
}

/**
 * @param {any} error of the server
 * @returns {boolean} whether it refused a wish, so that asking without it is worth a try
 */
export function refusesWish(error) {
  const { code, param } = error ?? {};
  if (code !== "unknown_parameter" && code !== "unsupported_parameter") return false;
  if (!(param in WISHES)) return false;
  refused.add(param);
  return true;
}
