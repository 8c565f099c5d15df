/**
 * The filter bar: text in kproxy's language, with its keys offered, and mistakes shown where they
 * stand.
 */

import { element, focus } from "./dom.js";

const OFFERED_MAX = 12;

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLElement} form
 * @returns {HTMLInputElement} where the filter is typed
 */
export function showFilter(store, form) {
  const input = /** @type {HTMLInputElement} */ (
    element("input", {
      type: "search", name: "filter", "aria-label": "Filter", autocomplete: "off",
      spellcheck: "false", placeholder: store.hint,
      role: "combobox", "aria-controls": "offered", "aria-expanded": "false",
    })
  );
  const offered = element("ul", { id: "offered", role: "listbox", hidden: true });
  const wrong = element("p", { class: "wrong", role: "alert", hidden: true });
  form.append(input, offered, wrong);
  /** @type {import("./source.js").Key[]} */
  let keys = [];
  let chosen = -1;
  store.keys().then((found) => (keys = found));

  const hide = () => {
    offered.hidden = true;
    chosen = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const offer = () => {
    const word = wordAt(input);
    const found = word ? keys.filter(({ key }) => key.startsWith(word) && key !== word) : [];
    const items = found.slice(0, OFFERED_MAX).map(({ key, help }, place) =>
      element(
        "li",
        {
          role: "option", id: `offered-${place}`, "aria-selected": String(place === chosen),
          onmousedown: (event) => { event.preventDefault(); take(key); },
        },
        element("b", {}, key), ` ${help}`,
      ),
    );
    offered.replaceChildren(...items);
    offered.hidden = items.length === 0;
    input.setAttribute("aria-expanded", String(items.length > 0));
    if (chosen < 0) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", `offered-${chosen}`);
  };
  /** @param {string} key */
  const take = (key) => {
    const at = input.selectionStart ?? input.value.length;
    const begin = at - wordAt(input).length;
    input.setRangeText(key, begin, at, "end");
    hide();
  };
  input.addEventListener("input", () => { chosen = -1; wrong.hidden = true; offer(); });
  input.addEventListener("search", () => input.value || store.filter("")); // its cross
  input.addEventListener("blur", hide);
  input.addEventListener("keydown", (event) => {
    const options = offered.hidden ? 0 : offered.children.length;
    if (options && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      const down = event.key === "ArrowDown";
      chosen = down ? (chosen + 1) % options : (Math.max(chosen, 0) + options - 1) % options;
      offer();
      event.preventDefault();
    } else if (options && (event.key === "Tab" || (event.key === "Enter" && chosen >= 0))) {
      take(offered.children[Math.max(0, chosen)].querySelector("b")?.textContent ?? "");
      event.preventDefault();
    } else if (event.key === "Escape") {
      if (options) hide();
      else {
        input.value = store.chosen.filter;
        input.blur();
      }
      event.preventDefault(); // or the browser would empty it, and the filter hold
      event.stopPropagation();
    }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    hide();
    store.filter(input.value.trim());
    if (!(focus("#list") || focus("#view"))) input.blur();
  });
  store.addEventListener("filter", () => { input.value = store.chosen.filter; });
  store.addEventListener("errors", () => {
    const error = store.errors.list;
    const column = error?.column ?? null;
    if (wrong.hidden === (column === null)) return; // as it was
    wrong.hidden = column === null;
    if (!error || column === null) return;
    wrong.replaceChildren(
      element("code", { "aria-hidden": "true" }, `${" ".repeat(column - 1)}^`),
      ` ${error.message}`,
    );
    input.focus();
    input.setSelectionRange(column - 1, column);
  });
  input.value = store.chosen.filter;
  return input;
}

/**
 * The word before the cursor.
 * @param {HTMLInputElement} input
 */
function wordAt(input) {
  const before = input.value.slice(0, input.selectionStart ?? 0);
  return /[^\s()]*$/.exec(before)?.[0] ?? "";
}
