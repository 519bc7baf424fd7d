// Written by tools/typescript.py from gpukernel/jupyter/kernel_status.py: change that, and run `make labextension`.

/** A slice's part of one device. */
export interface IDeviceStatus {
  /** The device as the pool knows it, and its model's name. */
  id: string;
  name: string;
  /** Memory of the whole device. */
  device_memory_bytes: number;
  /** Memory of the slice, and how much of it is in use. */
  memory_bytes: number;
  used_bytes: number;
  /** GPU time since the slice was granted. */
  gpu_seconds: number;
  /** Busy part of the last second, 0 to 1; None where nobody has measured it. */
  gpu_share: number | null;
}

/** A lease and its use, over all of its devices. All fields but `state` are empty or 0 where there is no lease. */
export interface ILeaseStatus {
  /** State of the kernel's slice, or of the lease where no kernel of this server has it. */
  state: string;
  /** The pool's identifier of the lease. */
  lease_id: string;
  /** Seconds since the epoch: the grant, and the latest end; 0 where nothing bounds it. */
  created: number;
  until: number;
  /** What the pool wants the holder to know, one sentence. */
  notice: string;
  /** The devices' names in the pool, separated by commas, and the model of the first. */
  device: string;
  device_name: string;
  /** Memory of the whole devices, of the slice, and in use. */
  device_memory_bytes: number;
  memory_bytes: number;
  used_bytes: number;
  /** Busy part of the last second, 0 to 1, of the busiest device; null where nobody has measured it. */
  gpu_share: number | null;
  /** GPU time since the slice was granted. */
  gpu_seconds: number;
}

/** The slice of one kernel, or its place in the queue. */
export interface IKernelStatus extends ILeaseStatus {
  /** `none`, `waiting`, `live` or `ended`. */
  state: 'none' | 'waiting' | 'live' | 'ended';
  /** Jupyter's identifier of the kernel. */
  kernel_id: string;
  /** The size that was asked for, in words: V100 × 0.02. */
  what: string;
  /** The place in the queue as one line; empty unless `state` is `waiting`. */
  words: string;
  /** Why there is no slice; of a request that waits, the quota or reservation that holds it back, and empty where only room is missing. */
  sentence: string;
  /** The place in the queue (1 is next, 0 not known), and about how long it takes; negative where nobody can tell. */
  position: number;
  estimate_seconds: number;
  /** The size as it was asked for; null for a size in MiB. */
  share: number | null;
  model: string;
  /** Whether the slice is about to be released as idle, and may be kept. */
  may_keep: boolean;
  /** What became of the kernel's latest work on the GPU: `fault` (its context is lost), `memory` (too little for a cell), or empty. */
  trouble: '' | 'fault' | 'memory';
  /** Whether the kernel's process cannot use another slice, since it has used CUDA before. */
  needs_restart: boolean;
  /** The next larger of the usual sizes that quotas allow, where `trouble` is `memory`; 0 where there is none. */
  larger_share: number;
  /** The parts of the single devices. */
  devices: IDeviceStatus[];
}

/** A lease of this person that another server holds. */
export interface IOtherLease extends ILeaseStatus {
  /** What its holder says of it, and the name of the server. */
  description: string;
  server: string;
}

/** Everything that the status bar and the side panel show. */
export interface IServerStatus {
  /** The kernels of this server. */
  kernels: IKernelStatus[];
  /** This person's leases elsewhere. */
  others: IOtherLease[];
  /** Why `others` may be out of date, one sentence. */
  problem: string;
  /** Seconds since the epoch, by the server's clock. */
  time: number;
}

/** The body of an event that the slice of a kernel, or its place in the queue, has changed. */
export type IKernelChange = Pick<IKernelStatus, 'kernel_id' | 'state' | 'what' | 'words' | 'sentence' | 'notice' | 'position' | 'estimate_seconds'>;
