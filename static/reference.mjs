/**
 * Makes of `docs/api.md` what the page shows of it, and what `/openapi.json` says of single fields.
 * The build fails at a link that leads nowhere.
 */

import MarkdownIt from "markdown-it";
import { fieldsOf } from "./fields.mjs";

/** Below the title of the page and the one of the reference. */
const DEEPER = 1;

const markdown = new MarkdownIt({ html: true, linkify: false });
const { escapeHtml } = markdown.utils;
const { rules } = markdown.renderer;

rules.code_inline = (tokens, index) => {
  // A long name may be broken where it is made of parts, and nowhere else.
  const parts = escapeHtml(tokens[index].content).replaceAll(/[/_.]+(?=\w|&lt;)/g, "$&<wbr>");
  return `<code>${parts}</code>`;
};
rules.fence = (tokens, index) => `<pre><code>${escapeHtml(tokens[index].content)}</code></pre>\n`;
rules.html_block = () => ""; // comments
rules.table_open = (tokens, index) =>
  tokens[index].meta.columns === 2
    ? '<div class="wide"><table class="pairs" role="table">'
    : '<div class="wide" tabindex="0" role="group" aria-label="Table"><table role="table">';
rules.table_close = () => "</table></div>\n";
// Narrow screens show rows as blocks, and some browsers then forget that they are rows.
const ROLES = { thead: "rowgroup", tbody: "rowgroup", tr: "row", th: "columnheader", td: "cell" };

/**
 * The name that GitHub gives a heading's anchor, so that links lead to the same place in both.
 * @param {string} heading
 */
function anchor(heading) {
  return heading
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\-_ ]/gu, "")
    .replaceAll(" ", "-");
}

/**
 * @param {string} text of `docs/api.md`
 * @returns {{html: string, contents: string, fields: Record<string, Record<string, string>>}} the
 *   reference, a list of links to its sections, and by type the descriptions of its fields
 */
export function reference(text) {
  const tokens = markdown.parse(text, {});
  const first = tokens.findIndex(({ type }) => type === "heading_close"); // the page has a title
  const body = tokens.slice(first + 1);
  const headings = nameHeadings(body);
  tidyTables(body);
  checkLinks(body, new Set(headings.map(({ id }) => id)));
  return {
    html: markdown.renderer.render(body, markdown.options, {}),
    contents: list(headings),
    fields: fieldsOf(body),
  };
}

/**
 * @typedef {{id: string, level: number, html: string}} Heading
 * @param {import("markdown-it").Token[]} tokens
 * @returns {Heading[]}
 */
function nameHeadings(tokens) {
  const found = [];
  for (const [index, token] of tokens.entries()) {
    if (!token.type.startsWith("heading_")) continue;
    const level = Number(token.tag[1]);
    token.tag = `h${level + DEEPER}`;
    if (token.type === "heading_close") continue;
    const { content, children } = tokens[index + 1];
    const id = anchor(content);
    if (found.some((other) => other.id === id)) throw new Error(`two sections are called ${id}`);
    token.attrSet("id", id);
    found.push({ id, level, html: markdown.renderer.render(children, markdown.options, {}) });
  }
  return found;
}

/** @param {import("markdown-it").Token[]} tokens */
function tidyTables(tokens) {
  let table;
  for (const [index, token] of tokens.entries()) {
    if (token.type === "table_open") table = token.meta = { columns: 0 };
    if (token.type === "th_open") table.columns += 1;
    if (token.nesting === 1 && token.tag in ROLES) token.attrSet("role", ROLES[token.tag]);
    if (token.type === "td_open") {
      const { children } = tokens[index + 1];
      if (children.length === 1 && children[0].type === "code_inline") token.attrSet("class", "name");
    }
  }
}

/**
 * Links to other files of the project become plain text: a server does not have these.
 * @param {import("markdown-it").Token[]} tokens
 * @param {Set<string>} ids of the headings
 */
function checkLinks(tokens, ids) {
  for (const { children } of tokens) {
    let plain = false;
    for (const child of children ?? []) {
      if (child.type === "link_open") {
        const target = `${child.attrGet("href")}`;
        plain = !/^(#|https?:)/.test(target);
        if (target.startsWith("#") && !ids.has(target.slice(1))) {
          throw new Error(`docs/api.md has no section ${target}`);
        }
      }
      if (child.type.startsWith("link_")) child.hidden = plain;
    }
  }
}

/** @param {Heading[]} headings */
function list(headings) {
  const [top] = headings;
  const parts = headings.map(({ id, level, html }, index) => {
    const next = headings[index + 1]?.level ?? top.level;
    const end = next > level ? "<ul>" : `</li>${"</ul></li>".repeat(level - next)}`;
    return `<li><a href="#${id}">${html}</a>${end}`;
  });
  return `<ul>${parts.join("")}</ul>`;
}
