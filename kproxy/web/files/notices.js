/**
 * How many exchanges there are, and what is wrong with the recordings.
 */

import { element } from "./dom.js";

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLElement} count
 * @param {HTMLElement} notices
 */
export function showNotices(store, count, notices) {
  const show = () => {
    const number = store.count.toLocaleString("en");
    const plural = store.count === 1 ? "" : "s";
    count.textContent = `${number} exchange${plural}${store.done ? "" : " …"}`;
    notices.replaceChildren(...store.notices.map((text) => element("p", {}, text)));
    if (store.wrong && store.wrong.column === null)
      notices.append(element("p", { class: "wrong" }, store.wrong.message));
  };
  for (const what of ["rows", "wrong"]) store.addEventListener(what, show);
}
