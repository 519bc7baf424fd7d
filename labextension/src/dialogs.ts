// A size of one's own: for a new kernel, or for a slice that is held.
import { Dialog, showDialog } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';
import { ask, IChance, IOffers } from './api';
import { IKernelStatus } from './kernel_status';
import { size } from './model';
import { __, said, sentence } from './texts';

// Between a change of the size and the question to the pool, so that a moving slider asks once.
const PAUSE_MS = 200;

export interface ISize {
  share: number;
  model: string;
}

class SizeForm extends Widget implements Dialog.IBodyWidget<ISize> {
  constructor(models: { [model: string]: number }, now: ISize, fixed: boolean) {
    super();
    this.addClass('gpukernel-size');
    this._models = models;
    this._fixed = fixed;
    for (const model of Object.keys(models)) {
      this._model.add(new Option(__('%1 — %2 each', model, size(models[model])), model));
    }
    this._model.value = now.model;
    this._model.disabled = fixed;
    // The slider is logarithmic: small slices are the usual ones.
    Object.assign(this._slider, { type: 'range', min: '-3', max: '0', step: '0.01' });
    // JupyterLab's dialog has its button only while all fields are valid: what is no share is not to be sent, any share between is.
    Object.assign(this._share, { type: 'number', min: '0.001', max: '1', step: 'any', required: true });
    this._share.value = String(now.share);
    this._slider.value = String(Math.log10(now.share));
    this._slider.oninput = () => {
      const share = Math.min(1, 10 ** Number(this._slider.value));
      this._share.value = String(Number(share.toPrecision(2)));
      this._say();
    };
    this._share.oninput = () => {
      this._slider.value = String(Math.log10(Number(this._share.value) || 0.001));
      this._say();
    };
    this._model.onchange = () => this._say();
    this._words.className = 'gpukernel-size-words';
    this._words.setAttribute('role', 'status');
    this.node.append(
      this._row(__('GPU'), this._model),
      this._row(__('Share'), this._share),
      this._slider,
      this._words
    );
    this._slider.setAttribute('aria-label', __('Share'));
    this._say();
  }

  getValue(): ISize {
    return { share: Number(this._share.value), model: this._model.value };
  }

  private _row(name: string, input: HTMLElement): HTMLElement {
    const label = document.createElement('label');
    const text = document.createElement('span');
    text.textContent = name;
    label.append(text, input);
    return label;
  }

  private _say(): void {
    window.clearTimeout(this._timer);
    this._timer = 0;
    const { share, model } = this.getValue();
    if (!(share >= 0.001 && share <= 1)) {
      this._words.textContent = __('A share lies between 0.001 and 1.');
      return;
    }
    const bytes = Math.floor((share * (this._models[model] ?? 0)) / 2 ** 20) * 2 ** 20;
    const memory = bytes ? __('%1 of memory', size(bytes)) : '';
    this._words.textContent = memory;
    if (!this._fixed) {
      this._timer = window.setTimeout(() => void this._ask(share, model, memory), PAUSE_MS);
    }
  }

  /** Say what the pool says of the size, unless it has changed meanwhile. */
  private async _ask(share: number, model: string, memory: string): Promise<void> {
    const asked = this._timer;
    let words = memory;
    try {
      const chance = await ask<IChance>(`chance?share=${share}&model=${encodeURIComponent(model)}`);
      words = prospects(chance, chance.memory_bytes ? __('%1 of memory', size(chance.memory_bytes)) : memory);
    } catch (error) {
      words = memory ? `${sentence(memory)} ${(error as Error).message}` : (error as Error).message;
    }
    if (asked === this._timer && !this.isDisposed) {
      this._words.textContent = words;
    }
  }

  private _models: { [model: string]: number };
  private _fixed: boolean;
  private _timer = 0;
  private _model = document.createElement('select');
  private _share = document.createElement('input');
  private _slider = document.createElement('input');
  private _words = document.createElement('div');
}

/** The prospects of a size of `memory`, in words. */
function prospects(chance: IChance, memory: string): string {
  if (chance.state === 'free') {
    return __('%1, %2 free now', memory, chance.free);
  }
  const why = sentence(said(chance.sentence));
  return chance.state === 'wait' ? __('%1, would wait now. %2', memory, why) : why;
}

/** Ask for a size for a new kernel; null where the person thought better of it. */
export async function askForSize(button: string): Promise<ISize | null> {
  const offers = await ask<IOffers>('offers');
  if (!Object.keys(offers.models).length) {
    await showDialog({
      title: __('No GPU to take a slice of'),
      body: offers.note ? sentence(__('Nothing is known now: %1', said(offers.note))) : __('The pool has no GPU now.'),
      buttons: [Dialog.okButton()]
    });
    return null;
  }
  const form = new SizeForm(offers.models, { share: 0.05, model: Object.keys(offers.models)[0] }, false);
  const result = await showDialog({
    title: __('A GPU slice of your own size'),
    body: form,
    buttons: [Dialog.cancelButton({ label: __('Cancel') }), Dialog.okButton({ label: button })]
  });
  return result.button.accept ? result.value : null;
}

/** Ask for another size of a slice that is held. */
export async function askForResize(kernel: IKernelStatus): Promise<ISize | null> {
  const now = kernel.share ?? kernel.memory_bytes / kernel.device_memory_bytes;
  const form = new SizeForm({ [kernel.model || 'GPU']: kernel.device_memory_bytes }, { share: now, model: kernel.model || 'GPU' }, true);
  const result = await showDialog({
    title: __('Resize %1', kernel.what),
    body: form,
    buttons: [Dialog.cancelButton({ label: __('Cancel') }), Dialog.okButton({ label: __('Resize') })]
  });
  return result.button.accept ? result.value : null;
}
