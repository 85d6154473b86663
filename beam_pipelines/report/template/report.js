// Filters the page by class, and copies paths. The page shows everything without this script.
"use strict";
(() => {
  const input = document.getElementById("class-filter");
  const status = document.getElementById("status");
  const parts = [...document.querySelectorAll("[data-classes]")];
  const closed = new Map([...document.querySelectorAll("details")].map((part) => [part, part.open]));

  function filter() {
    const text = input.value.trim().toLowerCase();
    const kinds = { classes: new Set(), groups: 0 };
    for (const part of parts) {
      const matching = part.dataset.classes.split("\n").filter((name) => name.toLowerCase().includes(text));
      part.hidden = text !== "" && matching.length === 0;
      if (part.hidden) continue;
      if (part.dataset.kind === "class") kinds.classes.add(part.dataset.classes);
      if (part.dataset.kind === "group") kinds.groups += 1;
    }
    for (const [part, wasOpen] of closed) {
      // A class that is only in the list below the chart is shown when it is searched.
      if (part.querySelector("[data-classes]")) {
        part.open = text === "" ? wasOpen : part.querySelector("[data-classes]:not([hidden])") !== null;
      }
    }
    const many = (number, one, more) => `${number.toLocaleString("en")} ${number === 1 ? one : more}`;
    status.textContent = text === "" ? "" :
      `${many(kinds.classes.size, "class", "classes")}, ${many(kinds.groups, "group of look-alikes", "groups of look-alikes")}`;
  }

  async function copy(button) {
    const text = button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // A browser that does not trust local files with its clipboard.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const copied = document.execCommand("copy");
      area.remove();
      button.focus();
      if (!copied) {
        status.textContent = "The browser does not allow copying.";
        return;
      }
    }
    status.textContent = `Copied: ${text}`;
  }

  document.getElementById("filter").hidden = false;
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
  input.addEventListener("input", filter);
  document.getElementById("clear").addEventListener("click", () => {
    input.value = "";
    filter();
    input.focus();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
  });
})();
