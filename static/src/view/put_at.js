/**
 * @param {HTMLElement} list
 * @param {number} place
 * @param {HTMLElement} element becomes its child there; one that is there already is left alone
 */
export function putAt(list, place, element) {
  const there = list.children[place] ?? null;
  if (there !== element) list.insertBefore(element, there);
}
