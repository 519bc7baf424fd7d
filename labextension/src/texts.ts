// Texts in JupyterLab's display language: English in the source, other languages from gpukernel/jupyter/locale, which JupyterLab
// reads as it reads every extension's (entry point `jupyterlab.locale`).
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';

let bundle: TranslationBundle = nullTranslator.load('gpukernel');

/** Speak the language of `translator` from now on; texts that stand already stay what they are. */
export function speak(translator: ITranslator | null): void {
  bundle = (translator ?? nullTranslator).load('gpukernel');
}

/** Translate a text; `%1`, `%2` … are the arguments. */
export function __(text: string, ...values: (string | number)[]): string {
  return bundle.__(text, ...values);
}

/** What the server and the pool say, as far as it can be translated; `tests/jupyter/test_languages.py` looks for it in their sources. */
export const SAID = [
  'released in its notebook',
  'the request was cancelled; run the cell again to queue again',
  'the request was cancelled; restart the kernel to queue again',
  'the cell was interrupted, so this kernel left the queue; run the cell again to queue again',
  'the cell was interrupted, so this kernel left the queue; restart the kernel to queue again',
  'it was idle for %1',
  'it was held for its longest time of %1',
  'its GPU server %1 was lost',
  'its GPU server %1 was drained',
  'This slice is idle and will be released at %1; any CUDA call keeps it.',
  'This slice ends at %1: its longest time is over then.',
  'The pool is slow to answer.',
  'All devices are in use now.',
  'All %1 are in use now.',
  'One request waits before you.',
  '%1 requests wait before you.'
];

const patterns = SAID.map(text => ({
  text,
  pattern: new RegExp('^' + text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(/%\d/g, '(.+)') + '$')
}));

/** A sentence of the server or the pool, translated where it is a known one. */
export function said(sentence: string): string {
  for (const { text, pattern } of patterns) {
    const found = pattern.exec(sentence);
    if (found) {
      return __(text, ...found.slice(1));
    }
  }
  return sentence;
}

/** `words` as a sentence: with a capital letter, and with a full stop. */
export function sentence(words: string): string {
  const whole = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.。！!？?]$/.test(whole) ? whole : `${whole}${__('.')}`;
}
