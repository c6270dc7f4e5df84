/**
 * Formulas in Markdown: `$…$` and `\(…\)` in a line, `$$…$$` and `\[…\]` on their own. They become
 * elements that carry the TeX as text, which is what is shown until, or if not, it can be typeset.
 */

/**
 * @typedef {import("markdown-it").MarkdownIt} MarkdownIt
 * @typedef {import("markdown-it").StateInline} StateInline
 * @typedef {import("markdown-it").StateBlock} StateBlock
 */

/** Characters of the longest formula; so the search for its end is short, whatever the text is. */
const LONGEST = 4000;

/**
 * Where the last search for a closing sign found none: the next one in the same text need not look
 * there again, and a thousand opening signs cost no more than one.
 * @type {Map<string, {text: string, from: number, to: number}>}
 */
const searched = new Map();

const PAIRS = [
  { open: "$$", close: "$$", display: true },
  { open: "\\[", close: "\\]", display: true },
  { open: "\\(", close: "\\)", display: false },
  { open: "$", close: "$", display: false },
];

/** @param {MarkdownIt} markdown */
export function math(markdown) {
  markdown.inline.ruler.before("escape", "math", inline);
  markdown.block.ruler.before("fence", "math", block, { alt: ["paragraph", "blockquote", "list"] });
  markdown.renderer.rules.math = (tokens, index) => {
    const { content, meta } = tokens[index];
    const tex = markdown.utils.escapeHtml(content);
    const tag = meta?.block ? "div" : "span";
    return `<${tag} class="math" data-display="${meta?.display}">${tex}</${tag}>`;
  };
}

/**
 * @param {StateInline} state
 * @param {boolean} silent
 */
function inline(state, silent) {
  const pair = PAIRS.find(({ open }) => state.src.startsWith(open, state.pos));
  if (!pair) return false;
  const start = state.pos + pair.open.length;
  const end = closing(state.src, start, state.posMax, pair.close);
  if (end < 0) return false;
  const content = state.src.slice(start, end);
  if (content.trim() === "") return false;
  // "$5 and $6" is money: a formula does not begin or end with a space, and no digit follows it.
  if (pair.open === "$") {
    if (/^\s|\s$/.test(content) || /\d/.test(state.src[end + 1] ?? "")) return false;
  }
  if (!silent) {
    const token = state.push("math", "", 0);
    token.content = content.trim();
    token.meta = { display: pair.display, block: false };
  }
  state.pos = end + pair.close.length;
  return true;
}

/**
 * A formula that begins a line, over any number of them.
 * @param {StateBlock} state
 * @param {number} startLine
 * @param {number} endLine
 * @param {boolean} silent
 */
function block(state, startLine, endLine, silent) {
  const begin = state.bMarks[startLine] + state.tShift[startLine];
  const pair = PAIRS.find(({ open, display }) => display && state.src.startsWith(open, begin));
  if (!pair) return false;
  const start = begin + pair.open.length;
  const end = closing(state.src, start, state.eMarks[endLine - 1], pair.close);
  if (end < 0) return false;
  const after = end + pair.close.length;
  let line = startLine;
  while (line < endLine && state.eMarks[line] < after) line += 1;
  if (line >= endLine || state.src.slice(after, state.eMarks[line]).trim() !== "") return false;
  if (state.src.slice(start, end).includes("\n\n")) return false;
  if (silent) return true;
  const token = state.push("math", "", 0);
  token.block = true;
  token.content = state.src.slice(start, end).trim();
  token.meta = { display: true, block: true };
  token.map = [startLine, line + 1];
  state.line = line + 1;
  return true;
}

/**
 * @param {string} text
 * @param {number} start
 * @param {number} limit
 * @param {string} close
 * @returns {number} where the closing sign stands, not after a backslash; -1 where there is none
 */
function closing(text, start, limit, close) {
  const last = Math.min(limit, start + LONGEST);
  const had = searched.get(close);
  const isKnown = had?.text === text && had.from <= start && start <= had.to;
  const near = text.slice(0, last);
  let at = isKnown ? Math.max(start, had.to - close.length + 1) : start;
  for (; (at = near.indexOf(close, at)) >= 0; at += 1) {
    let slashes = 0;
    while (at - slashes > start && near[at - 1 - slashes] === "\\") slashes += 1;
    if (slashes % 2 === 0) return at;
  }
  searched.set(close, { text, from: isKnown ? had.from : start, to: last });
  return -1;
}
