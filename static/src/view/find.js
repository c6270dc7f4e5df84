/**
 * Finds words in what is shown.
 * @param {Element} element
 * @param {string[]} words in small letters
 * @returns {Range|null} the first place in it that has one of them
 */
export function find(element, words) {
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const lower = (node.nodeValue ?? "").toLocaleLowerCase();
    const word = words.find((word) => lower.includes(word));
    if (word === undefined) continue;
    const range = document.createRange();
    const at = lower.indexOf(word);
    const end = (node.nodeValue ?? "").length; // small letters may be more than the large ones were
    range.setStart(node, Math.min(at, end));
    range.setEnd(node, Math.min(at + word.length, end));
    return range;
  }
  return null;
}
