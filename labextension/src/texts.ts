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
  '%1 ended it: %2',
  '%1 ended it',
  'This slice is idle and will be released at %1; any CUDA call keeps it.',
  'This slice ends at %1: its longest time is over then.',
  'The pool is slow to answer.',
  'the pool is slow to answer',
  'the pool is away',
  '%1, %2 free',
  '%1, would wait behind %2',
  '%1, would wait',
  'No pool answers at %1; start one with “gpukernel up”, or name another with --pool or GPUKERNEL_POOL.',
  'The GPU pool does not answer now; what runs on a slice goes on. If this lasts, tell whoever runs this JupyterHub.',
  'All devices are in use now.',
  'All %1 are in use now.',
  'One request waits before you.',
  '%1 requests wait before you.',
  'Others wait already: %1',
  '%1 may have slices of up to %2 of a device; %3 is larger.',
  '%1 may hold at most %2 devices at one moment; %3 can never fit.',
  '%1 may hold at most %2 MiB at one moment; %3 MiB can never fit.',
  '%1 may hold no slices: the quota is 0 leases.',
  '%1 holds %2 of %3 %4 leases; one more does not fit.',
  '%1 holds %2 of %3 %4 MiB; %5 MiB more do not fit.',
  '%1 holds %2 of %3 %4 MiB; a request ahead of this one waits for more.',
  '%1 holds %2 of %3 %4 %5; %6 more does not fit.',
  '%1 holds %2 of %3 %4 %5; a request ahead of this one waits for more.',
  '%1 They begin again %2.',
  '%1 has used %2 of %3 %4 GPU-hours of this %5.',
  '%1 has %2 MiB free; your slice of %3 MiB cannot grow by %4 MiB there.',
  '%1 MiB are allocated on %2; the slice cannot shrink to %3 MiB. Free memory first, or ask for at least that much.',
  'This slice is being resized already; ask again in a moment.'
];

/** What stands in place of the values of some of them. */
export const NAMED = [
  '%1, as a student of %2,',
  '%1, as an instructor of %2,',
  '%1, as a member of %2,',
  'Course %1',
  'The pool',
  'devices',
  'its',
  'their',
  '%1 s',
  '%1 min',
  '%1 h',
  'day',
  'week',
  'term',
  'on %1 %2 %3 at %4',
  ...['Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun'],
  ...['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec']
];

function translator(texts: string[]): (words: string) => string {
  const patterns = texts.map(text => ({
    text,
    pattern: new RegExp('^' + text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(/%\d/g, '(.+?)') + '$')
  }));
  return words => {
    for (const { text, pattern } of patterns) {
      const found = pattern.exec(words);
      if (found) {
        return __(text, ...found.slice(1).map(value => named(said(value))));
      }
    }
    return words;
  };
}

const named = translator(NAMED);

/** A sentence of the server or the pool, translated where it is a known one. */
export const said: (sentence: string) => string = translator(SAID);

/** `words` as a sentence: those that are none yet get a capital letter and a full stop; one that is may begin with somebody's name. */
export function sentence(words: string): string {
  return /[.。！!？?]$/.test(words) ? words : `${words.charAt(0).toUpperCase()}${words.slice(1)}${__('.')}`;
}

/** Several sentences, one behind the other; empty ones are left out. */
export function sentences(...all: string[]): string {
  return all.filter(Boolean).reduce((one, next) => __('%1 %2', one, next));
}
