/**
 * Markdown to elements. What a model writes is hostile: markup in it is text, and what comes of
 * the Markdown passes a sanitiser that lets only a few harmless elements through.
 */

import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";
import { math } from "./math.js";

/**
 * One top-level block of a text: a paragraph, a list, a table, a piece of code.
 * @typedef {{html: string, node: HTMLElement}} Block
 */

const markdown = new MarkdownIt({ html: false, linkify: true, breaks: true }).use(math);
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
// A picture would be fetched from wherever the model says; its description and address are shown.
markdown.renderer.rules.image = (tokens, index) => {
  const { content } = tokens[index];
  const address = `${tokens[index].attrGet("src") ?? ""}`;
  return markdown.utils.escapeHtml(content ? `${content} (${address})` : address);
};
markdown.renderer.rules.table_open = () => '<div class="table" tabindex="0"><table>';
markdown.renderer.rules.table_close = () => "</table></div>";
// The alignment of a column comes as a style, which the policy of the page does not let in.
for (const name of /** @type {const} */ (["th_open", "td_open"])) {
  markdown.renderer.rules[name] = (tokens, index, options, _env, self) => {
    const side = /text-align:(left|center|right)/.exec(`${tokens[index].attrGet("style")}`)?.[1];
    tokens[index].attrs = side ? [["class", `to-${side}`]] : [];
    return self.renderToken(tokens, index, options);
  };
}
// Lists of tasks: the policy lets no fields through, and nobody could tick them.
markdown.core.ruler.after("inline", "tasks", ({ tokens }) => {
  tokens.forEach(({ type, children }, index) => {
    const [text] = children ?? [];
    const isItem = type === "inline" && tokens[index - 2]?.type === "list_item_open";
    const box = isItem && text?.type === "text" && /^\[([ x])\] /i.exec(text.content);
    if (box) text.content = `${box[1] === " " ? "☐" : "☑"} ${text.content.slice(box[0].length)}`;
  });
});
markdown.renderer.rules.fence = (tokens, index) => {
  const { content, info } = tokens[index];
  const language = info.trim().split(/\s+/)[0] ?? "";
  return code(content, language);
};
markdown.renderer.rules.code_block = (tokens, index) => code(tokens[index].content, "");
markdown.renderer.rules.link_open = (tokens, index, options, _env, self) => {
  tokens[index].attrSet("rel", "noopener noreferrer nofollow");
  tokens[index].attrSet("target", "_blank");
  return self.renderToken(tokens, index, options);
};

/**
 * @param {string} content
 * @param {string} language as the model calls it
 */
function code(content, language) {
  const { escapeHtml } = markdown.utils;
  return `<pre data-language="${escapeHtml(language)}"><code>${escapeHtml(content)}</code></pre>\n`;
}

/** @type {import("dompurify").Config} */
const HARMLESS = {
  ALLOWED_TAGS: [
    ...["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "ul", "ol", "li"],
    ...["strong", "em", "s", "code", "pre", "a", "div", "span"],
    ...["table", "thead", "tbody", "tr", "th", "td"],
  ],
  ALLOWED_ATTR: [
    ...["href", "title", "rel", "target", "start", "class", "tabindex"],
    ...["data-language", "data-display"],
  ],
  ALLOW_DATA_ATTR: false,
  // Values of all other attributes must be such addresses.
  ADD_URI_SAFE_ATTR: ["rel", "target", "start", "tabindex", "data-language", "data-display"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

/** Of its own, since a configuration that stays is read once, not for each of a thousand blocks. */
const purifier = DOMPurify(window);
purifier.setConfig(HARMLESS);

/**
 * @param {string} text
 * @returns {string[]} the HTML of its top-level blocks, in order; not yet sanitised
 */
function blocksOf(text) {
  /** @type {string[]} */
  const blocks = [];
  const env = {};
  const tokens = markdown.parse(text, env);
  let start = 0;
  let depth = 0;
  tokens.forEach((token, index) => {
    depth += token.nesting;
    if (depth > 0) return;
    const part = tokens.slice(start, index + 1);
    blocks.push(markdown.renderer.render(part, markdown.options, env));
    start = index + 1;
  });
  return blocks;
}

/**
 * @param {string} html
 * @returns {HTMLElement} one that holds the block
 */
function elementOf(html) {
  const element = document.createElement("div");
  element.className = "block";
  element.dir = "auto"; // one answer may hold both directions
  element.append(/** @type {Node} */ (/** @type {unknown} */ (purifier.sanitize(html))));
  return element;
}

/** A text that grows, shown in an element. Only blocks that change are made anew. */
export class MarkdownView {
  /** @type {Block[]} */
  #blocks = [];
  #text = "";
  #complete = false;
  #element;
  #finish;

  /**
   * @param {HTMLElement} element
   * @param {(block: HTMLElement) => void} finish is given each block that stays, to add to it
   */
  constructor(element, finish) {
    this.#element = element;
    this.#finish = finish;
  }

  /**
   * @param {string} text all of it
   * @param {boolean} complete nothing follows
   */
  update(text, complete) {
    if (text === this.#text && complete === this.#complete) return;
    this.#text = text;
    this.#complete = complete;
    const blocks = blocksOf(text);
    blocks.forEach((html, index) => {
      const old = this.#blocks[index];
      if (old?.html !== html) this.#put(index, html);
    });
    for (const { node } of this.#blocks.splice(blocks.length)) node.remove();
    const settled = complete ? blocks.length : blocks.length - 1;
    for (const { node } of this.#blocks.slice(0, Math.max(settled, 0))) {
      if (node.dataset.done) continue;
      node.dataset.done = "true";
      this.#finish(node);
    }
  }

  /**
   * @param {number} index
   * @param {string} html
   */
  #put(index, html) {
    const node = elementOf(html);
    const old = this.#blocks[index];
    if (old) old.node.replaceWith(node);
    else this.#element.append(node);
    this.#blocks[index] = { html, node };
  }
}
