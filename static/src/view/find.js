import { small } from "../store/search.js";

/**
 * Finds words in what is shown.
 * @param {Element} element
 * @param {string[]} words in small letters
 * @returns {Range|null} the first place in it that has one of them
 */
export function find(element, words) {
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const lower = small(node.nodeValue ?? "");
    const word = words.find((word) => lower.includes(word));
    if (word === undefined) continue;
    const range = document.createRange();
    const at = lower.indexOf(word);
    range.setStart(node, at);
    range.setEnd(node, at + word.length);
    return range;
  }
  return null;
}
