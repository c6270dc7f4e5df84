/** Asks once more, on the button itself, before something is deleted. */

/**
 * @param {HTMLElement} button with a text, or a picture and a label
 * @param {() => void} act
 * @param {() => string} [question]
 */
export function sure(button, act, question = () => "Delete?") {
  /** @type {{label: string|null, content: ChildNode[]}|null} */
  let before = null;
  button.tabIndex = 0; // else Safari takes the focus away as it is pressed, which is a no
  button.addEventListener("blur", () => {
    if (before === null) return;
    delete button.dataset.sure;
    if (before.label !== null) button.setAttribute("aria-label", before.label);
    button.replaceChildren(...before.content);
    before = null;
  });
  // A key that is held says yes no more often than one that was pressed.
  button.addEventListener("keydown", (event) => event.repeat && event.preventDefault());
  button.addEventListener("click", (event) => {
    if (event.detail > 1) return; // the other half of a double click says nothing new
    if (before !== null) return act();
    before = { label: button.getAttribute("aria-label"), content: [...button.childNodes] };
    button.dataset.sure = "";
    button.removeAttribute("aria-label"); // the question is its name now
    button.textContent = question();
    button.focus(); // some browsers do not for a click, and its end is a blur
  });
}
