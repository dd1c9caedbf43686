"""Options of `holdfast run` that need thought, and whether the machine can hold what is asked."""

from __future__ import annotations

import math
import os
import re
import resource
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

from holdfast.agent.signals import called
from holdfast.checkpoint.memory import available_bytes
from holdfast.cli.words import count
from holdfast.domain import mesh
from holdfast.domain.diagnosis import Cause
from holdfast.domain.job import Budget, JobSpec, Limits, MayChange, Mode, SaveEvery, Stage, Target
from holdfast.domain.metric import METRICS, USER_PREFIX, Scope
from holdfast.domain.plan import Rung
from holdfast.domain.resources import MEMORY_BYTES_MIN, PROCESSES_MIN, Resources, size
from holdfast.domain.scaling import SmallerBatch
from holdfast.errors import UserError

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_CPUS_MIN = 0.01  # Below this the kernel refuses: a quota is at least 1 ms.
_WEIGHT_MAX = 10_000
_TARGET = re.compile(r"\s*([a-z][a-z0-9_]*)\s*(<=|>=)\s*(\S+)\s*")
_RANK_BYTES_MIN = 200 << 20  # What one rank with torch imported needs before it has done anything, shared pages left out.
_PROCESSES_MAX = 1 << 22  # PID_MAX_LIMIT of include/linux/threads.h: pids.max takes no more, and there are never more.


def nodes_of(text: str) -> tuple[int, int]:
    """torchrun's --nnodes: N, or MIN:MAX. The least and the most nodes a gang is formed on."""
    low, _, high = text.partition(":")
    try:
        least, most = int(low), int(high or low)
    except ValueError:
        raise UserError(f"--nnodes is a number of nodes, or MIN:MAX such as 2:4, not {text!r}") from None
    if least < 1:
        raise UserError(f"--nnodes must be at least 1, not {text}")
    if most < least:
        raise UserError(f"--nnodes {text}: the most nodes must not be fewer than the least; write {most}:{least}")
    return least, most


def mesh_of(text: str, least: int, most: int, ranks_per_node: int) -> mesh.Mesh | None:
    """--mesh: names and sizes of the whole gang, the last one fastest. Empty: it was not given."""
    if not text:
        return None
    try:
        said = mesh.parsed(text)
    except ValueError as error:
        raise UserError(f"--mesh {text}: {error}") from None
    ranks = count(most * ranks_per_node, "rank")
    if said.world_size != most * ranks_per_node:
        raise UserError(f"--mesh {text} is of {said.world_size} ranks, and the job has {ranks} ({most} x {ranks_per_node}): change one of the two")
    nodes = said.block(ranks_per_node)
    if least < most and said.elastic is None:
        raise UserError(f"--nnodes {least}:{most}: no dimension of --mesh {text} can have another size; dp and fsdp could. Give one number of nodes")
    if least % nodes:
        raise UserError(
            f"--nnodes {least}:{most}: a replica of --mesh {text} is on {count(nodes, 'node')}, and {least} is no multiple of it; "
            f"write {-(-least // nodes) * nodes}:{most}"
        )
    return said


def mode_of(text: str) -> Mode:
    """--policy."""
    try:
        return Mode(text)
    except ValueError:
        raise UserError(f"--policy is {', '.join(Mode)}, not {text!r}") from None


def hang_limits_of(text: str) -> tuple[tuple[str, float], ...]:
    """--hang-limit: TIME, or `off`, for all phases but the start; PHASE=TIME for one. Several with commas between them."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        phase, _, value = part.rpartition("=")
        seconds = 0.0 if value.strip() == "off" else time_of("--hang-limit", value.strip())
        if not seconds and value.strip() != "off":
            raise UserError(f"--hang-limit is TIME, `off` or PHASE=TIME, such as 5m or eval=1h,start=20m, not {part!r}; `off` stands for no limit")
        if phase.strip() in found:
            raise UserError(f"--hang-limit says twice how long {phase.strip() or 'a rank'} may take: {text!r}")
        found[phase.strip()] = seconds or 0.0
    return tuple(sorted(found.items()))


def never_of(texts: Sequence[str]) -> tuple[str, ...]:
    """--never."""
    return tuple(dict.fromkeys(_rung("--never", text) for text in texts))


def budgets_of(texts: Sequence[str]) -> tuple[Budget, ...]:
    """--budget: [RUNG][,CAUSE]:COUNT/TIME, or COUNT/TIME."""
    return tuple(map(_budget, texts))


def _budget(text: str) -> Budget:
    of, _, rest = text.rpartition(":")
    count, _, within = rest.partition("/")
    if not count.isdecimal() or not within:
        raise UserError(f"--budget is COUNT/TIME, RUNG:COUNT/TIME, CAUSE:COUNT/TIME or RUNG,CAUSE:COUNT/TIME, such as 20/1h or replace,hang:3/1d, not {text!r}")
    words = [word.strip() for word in of.split(",") if word.strip()]
    causes = [word for word in words if word in tuple(Cause)]
    rungs = [_rung("--budget", word, also=[str(cause) for cause in Cause]) for word in words if word not in causes]
    if len(causes) > 1 or len(rungs) > 1:
        raise UserError(f"--budget {text!r} names {' and '.join(words)}; expected one rung and one cause at most. Write --budget once for each")
    return Budget(count=int(count), within_s=time_of("--budget", within) or 0.0, rung="".join(rungs), cause="".join(causes))


def _rung(option: str, text: str, *, also: Sequence[str] = ()) -> str:
    """`also`: what might have been meant beside a rung."""
    names = [rung.name.lower() for rung in Rung if rung is not Rung.STOP]
    if text not in names:
        near = get_close_matches(text, [*names, *also], n=1)
        what = "rung or cause" if also else "rung"
        raise UserError(f"{option}: there is no {what} {text!r}; {f'did you mean {near[0]!r}?' if near else 'there are ' + ', '.join([*names, *also])}")
    return text


def may_change_of(text: str) -> MayChange:
    """--may-change: lr=FACTOR, clip=NORM, warmup=STEPS, each the furthest that a remedy may go."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise UserError(f"--may-change: {part!r} is no limit; expected such as lr=0.1,clip=1.0,warmup=500") from None
    unknown = sorted(found.keys() - {"lr", "clip", "warmup"})
    if unknown:
        raise UserError(f"--may-change: {unknown[0]!r} cannot be changed by a remedy; lr, clip and warmup can. `holdfast bisect` tries any other one")
    rate, clip, warm_up = found.get("lr", 1.0), found.get("clip", 0.0), found.get("warmup", 0.0)
    if not 0.0 < rate <= 1.0:
        raise UserError(f"--may-change lr={rate:g}: the rate may become so many times what the script says: above 0, and 1 at most")
    if not 0.0 <= clip < math.inf or not 0.0 <= warm_up < math.inf or warm_up % 1:
        raise UserError(f"--may-change {text}: clip is a norm of 0 or more, and warmup a whole number of steps")
    return MayChange(rate_min=rate, clip_min=clip, warm_up_max=int(warm_up))


def smaller_batch_of(text: str, least: int, most: int) -> SmallerBatch | None:
    """--smaller-batch: how the learning rate follows. Empty: it was not given."""
    if not text:
        return None
    if text not in tuple(SmallerBatch):
        raise UserError(f"--smaller-batch is {' or '.join(SmallerBatch)}, which is how the learning rate follows the batch, not {text!r}")
    if least == most:
        raise UserError(f"--smaller-batch {text}: a gang of {count(most, 'node')} is never smaller; let it be with --nnodes MIN:MAX, such as 1:{max(2, most)}")
    return SmallerBatch(text)


def processes_per_node(text: str) -> int:
    """torchrun's --nproc-per-node: a number, `gpu`, `cpu`, or `auto` (GPUs if there are any, else one)."""
    gpus = _gpus()
    match text:
        case "gpu" if not gpus:
            raise UserError("--nproc-per-node gpu: no GPU is found on this machine (no /dev/nvidia0); give a number, or `auto`")
        case "gpu":
            return gpus
        case "auto":
            return gpus or len(os.sched_getaffinity(0))
        case "cpu":
            return len(os.sched_getaffinity(0))
    try:
        count = int(text)
    except ValueError:
        raise UserError(f"--nproc-per-node is a number, `gpu`, `cpu` or `auto`, not {text!r}") from None
    if count < 1:
        raise UserError(f"--nproc-per-node must be at least 1, not {count}")
    return count


def checkpoint_every(text: str) -> SaveEvery | None:
    """--checkpoint-every: a number of steps, a time, or `auto`. Empty: it was not given."""
    if not text:
        return None
    if text == "auto":
        return SaveEvery()
    number, unit = text.rstrip("abcdefghijklmnopqrstuvwxyz"), text.lstrip("+-.0123456789")
    try:
        steps, seconds = (None, float(number) * SECONDS[unit]) if unit else (int(number), None)
    except (ValueError, KeyError):
        raise UserError(f"--checkpoint-every is a number of steps, a time such as 30s, 5m or 2h, or `auto`, not {text!r}") from None
    if steps is not None and steps < 0:
        raise UserError(f"--checkpoint-every must not be below 0, as {text} is; 0 saves only at a stop, at the end and when the script asks")
    if seconds is not None and not 0.0 < seconds < math.inf:
        raise UserError(f"--checkpoint-every {text}: a time must be above 0; `--checkpoint-every 0` saves only at a stop, at the end and when the script asks")
    return SaveEvery(steps=steps, seconds=seconds)


def limits_of(*, time_limit: str, epoch_limit: str, target: str, within: str, at_limit: str) -> Limits | None:
    """--time-limit, --epoch-limit, --target, --within and --at-limit. None: none of them was given."""
    _check_at_limit(at_limit)
    wanted = target_of(target) if target else None
    if within and wanted is None:
        raise UserError(f"--within {within} says until when, and --target what: give both, as in --target 'validation_loss<=0.5' --within 6h")
    job_s, epoch_s, target_s = time_of("--time-limit", time_limit), time_of("--epoch-limit", epoch_limit), time_of("--within", within)
    if at_limit == "stop" and job_s is None and epoch_s is None and target_s is None:
        raise UserError("--at-limit stop needs a limit to stop at: --time-limit, --epoch-limit, or --target with --within")
    limits = Limits(job_s=job_s, epoch_s=epoch_s, target=wanted, target_s=target_s, stop=at_limit == "stop")
    return limits if limits != Limits() else None


def limited_anew(limits: Limits | None, time_limit: str | None, at_limit: str | None) -> Limits | None:
    """The same with another --time-limit, or without one when it is empty, and another --at-limit; None: as it was."""
    _check_at_limit(at_limit or "report")
    changed = limits or Limits()
    changed = changed if time_limit is None else replace(changed, job_s=time_of("--time-limit", time_limit))
    changed = changed if at_limit is None else replace(changed, stop=at_limit == "stop")
    return changed if changed != Limits() else None


def _check_at_limit(text: str) -> None:
    if text not in ("report", "stop"):
        raise UserError(f"--at-limit is `report` or `stop`, not {text!r}")


def target_of(text: str) -> Target:
    """--target: METRIC<=VALUE or METRIC>=VALUE, of what a rank reports."""
    match = _TARGET.fullmatch(text)
    try:
        name, sign, value = match.groups() if match is not None else ("", "", "")
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"--target is METRIC<=VALUE or METRIC>=VALUE, such as 'validation_loss<=0.5' or 'accuracy_ratio>=0.9', not {text!r}")
    known = METRICS.get(name)
    if known is not None and known.scope is not Scope.RANK:
        raise UserError(f"--target {text}: {name!r} is no number that a rank reports; `loss`, `validation_loss`, `accuracy_ratio` or one of your own is")
    return Target(metric=name if known is not None else called(name.removeprefix(USER_PREFIX)), value=number, below=sign == "<=")


def time_of(option: str, text: str) -> float | None:
    if not text:
        return None
    try:
        seconds = in_units(text, SECONDS)
    except (ValueError, KeyError):
        raise UserError(f"{option} is a time such as 90s, 30m, 12h or 2d, not {text!r}") from None
    if not 0.0 < seconds < math.inf:
        raise UserError(f"{option} {text}: a time must be above 0")
    return seconds


def in_units(text: str, units: Mapping[str, float]) -> float:
    """A number with its unit behind it; raises ValueError or KeyError for anything else."""
    return float(text.rstrip(string.ascii_letters)) * units[text.lstrip("+-.0123456789")]


def resources_of(
    *, memory: str, memory_high: str, memory_per_worker: str, cpus: float | None, cpu_weight: int | None, max_processes: int | None
) -> Resources:
    """--memory, --memory-high, --memory-per-worker, --cpus, --cpu-weight and --max-processes, each by itself and beside the others."""
    least, colon, most = memory.partition(":")
    if colon and not (least and most):
        raise UserError(f"--memory is a size such as 64GB, or MIN:MAX such as 64GB:96GB, not {memory!r}")
    asked = Resources(
        memory_bytes=_size("--memory", least), memory_max_bytes=_size("--memory", most), memory_high_bytes=_size("--memory-high", memory_high),
        worker_memory_bytes=_size("--memory-per-worker", memory_per_worker), cpus=cpus, cpu_weight=cpu_weight, processes=max_processes,
    )  # fmt: skip
    if asked.memory_max_bytes is not None and asked.memory_max_bytes <= (asked.memory_bytes or 0):
        raise UserError(f"--memory {memory}: {most}, so far as it may be raised, must be above {least}, where it begins; swap them, or give one size")
    if asked.memory_bytes is not None and (asked.worker_memory_bytes or 0) > asked.memory_bytes:
        raise UserError(f"--memory-per-worker {memory_per_worker} is more than --memory {memory}, which all workers of a node have together: swap them")
    if asked.memory_bytes is not None and (asked.memory_high_bytes or 0) >= asked.memory_bytes:
        raise UserError(f"--memory-high {memory_high} must be below --memory {memory}: from there on the job is held up, and at the limit somebody is killed")
    if cpus is not None and not _CPUS_MIN <= cpus < math.inf:
        raise UserError(f"--cpus is a number of cores of at least {_CPUS_MIN:g}, such as 1.5, not {cpus:g}")
    if cpu_weight is not None and not 1 <= cpu_weight <= _WEIGHT_MAX:
        raise UserError(f"--cpu-weight is from 1 to {_WEIGHT_MAX}, not {cpu_weight}; 100 is what everybody has who does not ask")
    return asked


def _size(option: str, text: str) -> int | None:
    if not text:
        return None
    try:
        size_bytes = in_units(text, _BYTES)
    except (ValueError, KeyError):
        raise UserError(f"{option} is a size such as 512MB, 8GB or 7.5GiB, not {text!r}") from None
    if size_bytes < MEMORY_BYTES_MIN:
        raise UserError(f"{option} {text} is too little: in less than {size(MEMORY_BYTES_MIN)} no worker gets as far as its first line")
    return int(size_bytes)


def shape_of(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """What `--shape KEY=VALUE` said, by key."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UserError(f"--shape is KEY=VALUE such as batch=32, not {text!r}")
        found[key.strip()] = value.strip()
    return tuple(sorted(found.items()))


def stages_of(texts: Sequence[str]) -> tuple[Stage, ...]:
    """--stage PATH[=TARGET]."""
    found: dict[str, Stage] = {}
    for text in texts:
        source, _, target = text.partition("=")
        path, below = Path(source).absolute(), PurePosixPath(target or Path(source).name)
        if not source or not path.exists():
            raise UserError(f"--stage {text}: there is no {path}; name a file or directory that every node can read")
        if below.is_absolute() or not below.parts or ".." in below.parts:
            raise UserError(f"--stage {text}: TARGET is a path below $HOLDFAST_STAGED, such as data/train, not {target!r}")
        clash = next((other for other in found if below.is_relative_to(other) or PurePosixPath(other).is_relative_to(below)), "")
        if clash:
            raise UserError(f"--stage {text}: {below} and {clash} lie in the same place; give one another name, as in {source}=other/{below.name}")
        found[str(below)] = Stage(source=str(path), target=str(below))
    return tuple(found.values())


def notice_file_of(text: str) -> str:
    """--notice-file: a file that need not be there yet, in a directory that is."""
    path = Path(text).absolute() if text else None
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        wrong = "is a directory" if path.is_dir() else f"cannot appear: there is no directory {path.parent}"
        raise UserError(f"--notice-file {text} {wrong}; name the file that is written when a node is to go, such as /run/notice or '/run/notice-{{node}}'")
    return str(path or "")


def gpus_of(text: str, nodes: int) -> tuple[int, ...]:
    """--gpus: numbers as nvidia-smi has them, dealt to so many nodes. Empty: it was not given."""
    if not text:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UserError(f"--gpus is a list of numbers such as 0,1, as `nvidia-smi -L` has them, not {text!r}")
    gpus = tuple(int(part) for part in parts)
    if len(set(gpus)) < len(gpus):
        raise UserError(f"--gpus {text} has a number twice")
    missing = [str(gpu) for gpu in gpus if not Path(f"/dev/nvidia{gpu}").exists()]
    if missing:
        raise UserError(f"--gpus {text}: there is no GPU {', '.join(missing)} here ({_gpus()} found as /dev/nvidiaN)")
    if len(gpus) % nodes:
        raise UserError(f"--gpus {text} cannot be dealt to {nodes} nodes, spares counted: {len(gpus)} is not a multiple of {nodes}")
    return gpus


def check_fits(spec: JobSpec) -> None:
    """Refuse more ranks than the machine can hold, and more than it has, with the numbers."""
    _check_resources(spec)
    world = spec.world_size
    available = available_bytes()
    if world * _RANK_BYTES_MIN > available:
        holds = available // _RANK_BYTES_MIN
        raise UserError(
            f"{world} ranks ({spec.nodes} x {spec.ranks_per_node}) need at least {world * _RANK_BYTES_MIN / 2**30:.0f} GiB of memory and "
            f"{available / 2**30:.0f} GiB are available; this machine can hold about {holds}: lower --nproc-per-node or --nnodes"
        )
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and world * 4 > soft:
        raise UserError(f"{world} ranks need about {world * 4} processes and threads, and this user may have {soft}: raise `ulimit -u`, or ask for fewer ranks")


def _check_resources(spec: JobSpec) -> None:
    asked, cores, machine = spec.resources, len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sizes = {"--memory": asked.memory_bytes, "--memory-high": asked.memory_high_bytes, "--memory-per-worker": asked.worker_memory_bytes}
    sizes["--memory raised to"] = asked.memory_max_bytes
    for option, wanted in sizes.items():
        if wanted is not None and wanted > machine:
            has = f"{machine / 2**30:.1f} GiB"
            raise UserError(f"{option} {size(wanted)} is more than this machine has ({has}): it would limit nothing; lower it, or leave it out")
    if asked.cpus is not None and asked.cpus > cores:
        raise UserError(f"--cpus {asked.cpus:g} is more than there are ({cores}): it would limit nothing; lower it, or leave it out")
    if asked.processes is not None and asked.processes > _PROCESSES_MAX:
        raise UserError(f"--max-processes {asked.processes} is more than Linux can have ({_PROCESSES_MAX}): it would limit nothing; lower it, or leave it out")
    least = PROCESSES_MIN * spec.ranks_per_node
    if asked.processes is not None and asked.processes < least:
        ranks = count(spec.ranks_per_node, "rank")
        raise UserError(f"--max-processes {asked.processes} is too few for {ranks} on a node, whose threads count too: at least {least}")


def _gpus() -> int:
    return sum(1 for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit())
