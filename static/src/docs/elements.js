// Elements with texts in them. Every word of a description is set as text, never as markup.

/** @typedef {(string|Node)[]} Nodes */

/**
 * @param {string} id
 * @returns {HTMLElement}
 */
export function by(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/**
 * An element with attributes and children; texts become text nodes.
 * @param {string} name
 * @param {Record<string, string>} [attributes]
 * @param {Nodes} children
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/**
 * A piece of code. A long name may be broken where it is made of parts, and nowhere else.
 * @param {string} text
 */
export function code(text) {
  const parts = text.split(/(?<=[/_.])(?=[\w{])/);
  return element("code", {}, ...parts.flatMap((part, index) => (index ? [element("wbr"), part] : [part])));
}

const MARKS = /`(?<code>[^`]+)`|\[(?<words>[^\]]+)\]\(docs(?<target>#[\w-]+)\)/g;

/**
 * Text with the little Markdown that descriptions have: pieces of code, links into the reference.
 * @param {string} text
 * @returns {Nodes}
 */
export function prose(text) {
  /** @type {Nodes} */
  const nodes = [];
  let end = 0;
  for (const { 0: whole, index, groups = {} } of text.matchAll(MARKS)) {
    nodes.push(text.slice(end, index));
    nodes.push(groups.code ? code(groups.code) : element("a", { href: groups.target }, ...prose(groups.words)));
    end = index + whole.length;
  }
  return [...nodes, text.slice(end)];
}

/**
 * @param {Nodes[]} lists
 * @param {string} [between]
 * @returns {Nodes}
 */
export function separated(lists, between = " or ") {
  return lists.flatMap((list, index) => (index ? [between, ...list] : list));
}
