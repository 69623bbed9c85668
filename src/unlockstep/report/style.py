"""How the page of a report looks, and the little it does by itself: one style sheet, one script, both inline.

Decides type, room, and what changes on a narrow screen, in the dark and on paper. The page is complete without the
script, which sorts and filters the table of rounds. Colours of marks are in ``figures``.
"""

from __future__ import annotations

from unlockstep.report.figures import STYLE

PAGE_STYLE = (
    STYLE
    + """
:root { color-scheme: light dark; --shade: color-mix(in srgb, var(--ink) 35%, transparent); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; padding-top: .6rem; border-top: 1px solid var(--grid); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; overflow-wrap: anywhere; }
p { margin: .4rem 0 .8rem; max-width: 46rem; }
a { color: var(--c0); }
nav { margin: 1rem 0; font-size: .9rem; display: flex; flex-wrap: wrap; gap: .2rem .9rem; }
.quiet, figcaption, dt { color: var(--quiet); }
.figures { display: grid; grid-template-columns: repeat(4, 1fr); gap: .6rem; margin: 1rem 0; }
.figures div { background: var(--panel); border: 1px solid var(--grid); border-radius: 6px; padding: .55rem .7rem; }
.figures dt { font-size: .8rem; } .figures dd { margin: 0; font-size: 1.3rem; font-weight: 600; }
.figures dd small { display: block; font-size: .75rem; font-weight: 400; color: var(--quiet); }
dl.figures { margin-block: 1rem; }
figure { margin: .8rem 0 1.2rem; min-width: 0; }
figcaption { font-size: .88rem; margin-bottom: .3rem; max-width: 46rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: .5rem 1.5rem; }
.charts svg { width: 100%; height: auto; max-width: 23rem; }
svg { display: block; }
.scroll, .tall { overflow: auto; background: linear-gradient(to right, var(--paper) 30%, transparent) left / 3rem 100%,
    linear-gradient(to left, var(--paper) 30%, transparent) right / 3rem 100%,
    linear-gradient(to right, var(--shade), transparent) left / 1rem calc(100% - 4px),
    linear-gradient(to left, var(--shade), transparent) right / 1rem calc(100% - 4px);
  background-repeat: no-repeat; background-attachment: local, local, scroll, scroll; }
.scroll + .scroll { margin-top: 1.2rem; }
.scroll svg { max-width: none; }
.timeline { display: flex; } .timeline > svg { flex: none; } .timeline .scroll { flex: 1; min-width: 0; }
ul.legend { list-style: none; margin: .3rem 0; padding: 0; display: flex; flex-wrap: wrap; gap: .1rem .9rem;
  font-size: .85rem; }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .35em; border-radius: 2px;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { white-space: nowrap; text-align: left; color: var(--quiet); font-size: .88rem; padding-bottom: .3rem; }
th, td { text-align: right; padding: .2rem .55rem; border-bottom: 1px solid var(--grid); vertical-align: top;
  white-space: nowrap; }
th { font-weight: 600; } thead th { border-bottom-color: var(--quiet); }
.words { text-align: left; white-space: normal; min-width: 18rem; max-width: 30rem; overflow-wrap: anywhere; }
.words span { white-space: nowrap; }
.name { text-align: left; max-width: 14rem; overflow: hidden; text-overflow: ellipsis; }
table.rounds thead th { position: sticky; top: 0; background: var(--paper); }
.tall { max-height: 34rem; border: 1px solid var(--grid); border-radius: 6px; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th[aria-sort] button { text-decoration: underline; }
.filter { margin: .3rem 0; } .filter input { font: inherit; padding: .2rem .4rem; width: min(20rem, 100%);
  color: inherit; background: var(--panel); border: 1px solid var(--quiet); border-radius: 4px; }
tr.marked { font-weight: 600; } tr.marked th::before { content: "\\2260\\00a0"; }
dl.words-list { columns: 2 22rem; column-gap: 2rem; font-size: .88rem; }
dl.words-list dt { font-weight: 600; color: var(--ink); break-after: avoid; }
dl.words-list dd { margin: 0 0 .5rem; max-width: 46rem; break-inside: avoid; }
svg .mark { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
@media (max-width: 40rem) { body { padding: 1rem .7rem 3rem; font-size: 14px; } .figures dd { font-size: 1.1rem; }
  .figures { grid-template-columns: repeat(2, 1fr); } caption { white-space: normal; }
  th.name { white-space: normal; min-width: 5.6rem; max-width: 8rem; overflow-wrap: break-word; }
  .words { min-width: 8rem; }
  th, td { padding: .2rem .4rem; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } nav, .filter { display: none; }
  figure, .figures div, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .scroll, .tall { overflow: visible; background: none; max-height: none; border: 0; }
  .timeline { zoom: .64; } .words { min-width: 0; } table.rounds { font-size: 6.5pt; }
  table.rounds th, table.rounds td { padding: .1rem .3rem; }
  .charts { grid-template-columns: repeat(3, 1fr); } table { font-size: 8pt; } th, td { white-space: normal; }
  table.rounds tbody tr:nth-child(n + 41) { display: none; } }
"""
)

SCRIPT = """
for (const table of document.querySelectorAll("table.rounds")) {
  const body = table.tBodies[0], rows = [...body.rows];
  const value = (row, at) => row.cells[at].dataset.value ?? row.cells[at].textContent;
  [...table.tHead.rows[0].cells].forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((a, b) => {
        const x = value(a, at), y = value(b, at), n = Number(x) - Number(y);
        return (Number.isNaN(n) ? x.localeCompare(y) : n) * (down ? -1 : 1);
      });
      body.append(...rows);
    });
  });
  const filter = document.createElement("p");
  filter.className = "filter";
  const label = document.createElement("label"), input = document.createElement("input");
  label.append("Show rounds with ", input);
  input.type = "search";
  filter.append(label);
  table.parentElement.before(filter);
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}
"""
