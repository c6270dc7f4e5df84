/**
 * One tab of this browser at a time: what is held under a name here is waited for elsewhere, until
 * it is done or its tab is gone. Where the browser has no locks (a page over plain http from another
 * machine), nobody waits.
 */

/**
 * @param {string} name
 * @param {() => Promise<void>} work
 * @returns {Promise<void>}
 */
export async function claim(name, work) {
  if (navigator.locks) await navigator.locks.request(`ds4trio.${name}`, work);
  else await work();
}
