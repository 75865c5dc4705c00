/* The picker of a model: an image, the memory that is left, context and users in; whether it fits and the command out. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("picker-form");
  if (!form) return;
  const { make, terminal, command, verdict, memoryBar, machineOf, bind } = Drawing;

  function* notes(image, withKey) {
    for (const warning of image.warnings) yield `Warning: ${warning}.`;
    if (image.pair) yield "Two Sparks: this starts the first; docs/two-sparks.md starts both.";
    if (!image.command) yield "Not published, as far as this site knows: the commands build it, from a new checkout.";
    else {
      yield `${image.answers[0].toUpperCase()}${image.answers.slice(1)}.`;
      if (image.reference) yield `The digest is from the registry’s catalog, which is not signed, and this commit makes another. Check it: ./inv verify --image ${image.reference}`;
    }
    if (withKey) yield "Set VLLM_API_KEY in your shell first: the command hands the key on by name.";
  }

  bind(form, (fields, linked) => {
    const image = startsData.images.find(({ slug }) => slug === fields.image.value);
    const machine = machineOf(image.machine, Number(fields.free.value));
    const [context, users] = [fields.context, fields.users].map(({ value }) => Number(value));
    const [port, withKey, parser] = [fields.port.value, fields.key.checked, fields.tools?.checked ? fields.tools.value : ""];
    const withDisk = fields.disk.checked && Boolean(image.memory?.stage);
    const fitted = image.memory && Memory.fit(image.memory, machine, { context, users, disk: withDisk });
    const [kind, words] = fitted ? verdict(image, fitted, users) : ["quiet", "no memory figures: the image looks when it starts"];
    fields.free.placeholder = machine ? (machine.free / 1e9).toFixed(1) : "";
    for (const field of [fields.free, fields.context, fields.users]) field.disabled = !fitted;
    fields.disk.disabled = !image.memory?.stage;
    const box = document.getElementById("picker-verdict");
    box.dataset.result = kind;
    box.replaceChildren(make("p", { class: "picker-headline" }, words[0].toUpperCase() + words.slice(1), "."), make("ul", {}, ...[...notes(image, withKey)].map((note) => make("li", {}, note))));
    document.getElementById("picker-linked").textContent = linked.size ? `The link to this page chose: ${[...linked].join(", ")}.` : "";
    document.getElementById("picker-start").replaceChildren(terminal(command(image, fitted, { users, port, withKey, withDisk, parser })));
    document.getElementById("picker-memory").replaceChildren(...(fitted ? [memoryBar(image, fitted, machine)] : []));
  });
});
