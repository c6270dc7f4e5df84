/**
 * Text kept through a reload.
 *
 * Each value is written twice: to the tab's own sessionStorage, which wins when read, so that two
 * open tabs never overwrite each other's chat; and to localStorage, from which a new tab goes on.
 */

const PREFIX = "ds4trio.";

/** @returns {Storage[]} the areas this browser lets us use; private modes may refuse both */
function areas() {
  const found = [];
  for (const name of /** @type {const} */ (["sessionStorage", "localStorage"])) {
    try {
      found.push(window[name]);
    } catch {
      continue;
    }
  }
  return found;
}

/**
 * @param {string} name
 * @returns {string|null}
 */
export function read(name) {
  for (const area of areas()) {
    const text = area.getItem(PREFIX + name);
    if (text !== null) return text;
  }
  return null;
}

/**
 * @param {string} name
 * @param {string} text
 * @returns {boolean} whether at least this tab kept it
 */
export function write(name, text) {
  let kept = false;
  for (const area of areas()) {
    try {
      area.setItem(PREFIX + name, text);
      kept = true;
    } catch {
      continue; // over its quota; the other area may still have room
    }
  }
  return kept;
}

/** What was being written as the tab's page went: the database may be too slow for that moment. */
export const lastDrafts = {
  /** @returns {{chatId: string, text: string}[]} what the page before this one left, once */
  take() {
    try {
      const kept = JSON.parse(sessionStorage.getItem(`${PREFIX}drafts`) ?? "[]");
      sessionStorage.removeItem(`${PREFIX}drafts`);
      return kept;
    } catch {
      return [];
    }
  },

  /** @param {{chatId: string, text: string}[]} drafts */
  leave(drafts) {
    try {
      sessionStorage.setItem(`${PREFIX}drafts`, JSON.stringify(drafts));
    } catch {
      return; // what was saved while it was written is all there is
    }
  },
};

/**
 * The API key, for this tab or, where the reader asked for it, for this browser.
 */
export const keyStore = {
  /** @returns {string} empty where there is none */
  get() {
    return read("key") ?? "";
  },

  /**
   * @param {string} key
   * @param {boolean} keep beyond this tab
   */
  set(key, keep) {
    this.forget();
    const [session, local] = ["sessionStorage", "localStorage"];
    try {
      window[/** @type {"localStorage"} */ (keep ? local : session)].setItem(PREFIX + "key", key);
    } catch {
      return; // the key then lasts as long as the page
    }
  },

  forget() {
    for (const area of areas()) area.removeItem(PREFIX + "key");
  },
};
