/** Asks once more, on the button itself, before something is gone for good. */

/**
 * @param {HTMLElement} button
 * @param {() => void} act
 */
export function sure(button, act) {
  const words = button.textContent;
  button.addEventListener("blur", () => {
    delete button.dataset.sure;
    button.textContent = words;
  });
  button.addEventListener("click", (event) => {
    if (event.detail > 1) return; // the other half of a double click says nothing new
    if (button.dataset.sure !== undefined) return act();
    button.dataset.sure = "";
    button.textContent = "Really?";
  });
}
