/**
 * The number of exchanges, and what is wrong: with the recordings, or with what was asked.
 */

import { element } from "./dom.js";

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLElement} count
 * @param {HTMLElement} notices
 */
export function showNotices(store, count, notices) {
  const show = () => {
    const refused = store.errors.list;
    const number = store.count.toLocaleString("en");
    const plural = store.count === 1 ? "" : "s";
    const live = !store.ended && (store.live !== null || store.grew);
    const [word, title] = store.live?.replayed
      ? ["replay", "clients get what was recorded here"]
      : ["live", "the list grows"];
    const { partial } = store;
    const reading = partial === null ? "" : `, partial: ${Math.floor(100 * partial)} % is read`;
    count.replaceChildren(
      ...(live ? [element("span", { class: "live", title }, word), " "] : []),
      ...(store.recorded && !refused ? [`${number} exchange${plural}${reading}`] : []),
    );
    const errors = Object.entries(store.errors).filter(
      ([part, error]) => part !== "exchange" && part !== "story" && error.column === null,
    );
    const texts = [...new Set(errors.map(([, error]) => error.message))];
    notices.replaceChildren(
      ...texts.map((text) => element("p", { class: "wrong", role: "alert" }, text)),
      ...store.notices.map((text) => element("p", {}, text)),
    );
  };
  for (const what of ["list", "errors", "live", "restart"]) store.addEventListener(what, show);
}
