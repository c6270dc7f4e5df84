/**
 * Colours for code, in a thread of their own: some languages take minutes for some texts, in which
 * the page would stand still. Code that takes too long stays as it is.
 */

import DOMPurify from "dompurify";

const PATIENCE_MS = 2000;

/** @type {Promise<Worker>|null} */
let started = null;
/** One piece of code after another. */
let queue = Promise.resolve();

/**
 * @param {string} text
 * @param {string} language as the model calls it
 * @returns {Promise<DocumentFragment|null>} null where the language is not known, or the text takes
 *   too long
 */
export function highlighted(text, language) {
  const done = queue.then(() => coloured(text, language)).catch(() => null);
  queue = done.then(() => {});
  return done.then((html) => (html === null ? null : sanitised(html)));
}

/**
 * @param {string} text
 * @param {string} language
 * @returns {Promise<string|null>}
 */
async function coloured(text, language) {
  started ??= start();
  const worker = await started;
  return new Promise((resolve) => {
    const timer = setTimeout(() => {
      worker.terminate();
      started = null;
      resolve(null);
    }, PATIENCE_MS);
    worker.onmessage = ({ data }) => {
      clearTimeout(timer);
      resolve(data);
    };
    worker.postMessage({ text, language });
  });
}

/** @returns {Promise<Worker>} that has its languages */
function start() {
  return new Promise((resolve, reject) => {
    const worker = new Worker("./highlighter.js", { type: "module" });
    worker.onmessage = () => resolve(worker);
    worker.onerror = (error) => {
      started = null; // the server may be back for the next one
      reject(error);
    };
  });
}

/** @param {string} html */
function sanitised(html) {
  return DOMPurify.sanitize(html, {
    ALLOWED_TAGS: ["span"],
    ALLOWED_ATTR: ["class"],
    RETURN_DOM_FRAGMENT: true,
  });
}
