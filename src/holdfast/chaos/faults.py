"""All faults, by family. Names are those of the benchmark's records; keys are what is typed."""

from __future__ import annotations

from holdfast.chaos import clock, cores, disks, network, processes
from holdfast.chaos.fault import Aim, Fault, Need
from holdfast.chaos.inside import everywhere, fail_next_start, inside

_HANG = ("hang",)
_FULL = ("save_failed", "save_will_fail", "disk_running_out", "failing_disk", "rule:DiskNearlyFull", "rule:DiskFull", "rule:DiskErrors")
_SLOW_NETWORK = ("lossy_network", "slow_peer", "slow_communication")

_ALL = (
    # Processes.
    Fault(key="worker_killed", name="worker killed", says="SIGKILL to rank {rank}", kinds=("killed",), strike=processes.kill_worker, within_s=10),
    Fault(key="worker_stopped", name="worker stopped", says="SIGSTOP to rank {rank}", kinds=_HANG, strike=processes.stop_worker),
    # An agent that needs longer to come back than a silent node is given is a lost node, and is to be treated as one.
    Fault(key="agent_killed", name="agent killed", says="SIGKILL to the agent of {node}", kinds=("node_lost",), strike=processes.kill_agent, aim=Aim.AGENT,
          culprit="", ridden_through=True),
    Fault(key="control_killed", name="control killed", says="SIGKILL to control", kinds=(), strike=processes.kill_control, aim=Aim.CONTROL, culprit="",
          ridden_through=True),
    Fault(key="node_lost", name="node lost", says="{node} is lost: all its processes, its disk and its memory", kinds=("node_lost",),
          strike=processes.lose_node, aim=Aim.NODE, culprit="node", needs=(Need.SPARE,)),
    # Inside the script.
    Fault(key="exception", name="exception", says="rank {rank} raises", kinds=("exception",), strike=inside("exception"), order="exception"),
    Fault(key="exit_at_start", name="exit at the start", says="SIGKILL to rank {rank}, which will exit with 1 when it is started again",
          kinds=("killed", "exit_code"), strike=fail_next_start, order="exit_at_start"),
    Fault(key="gil_held", name="busy loop that holds the GIL", says="rank {rank} computes for ever and holds the GIL", kinds=_HANG, strike=inside("gil"),
          within_s=90, order="gil"),
    Fault(key="deadlock", name="deadlock in a collective", says="rank {rank} waits in a collective where nobody comes", kinds=_HANG,
          strike=inside("deadlock"), within_s=90, order="deadlock"),
    Fault(key="rank_asleep", name="rank asleep", says="rank {rank} sleeps for ever", kinds=_HANG, strike=inside("asleep"), within_s=90, order="asleep"),
    Fault(key="data_stuck", name="data loader stuck", says="rank {rank} waits for data for ever", kinds=_HANG, strike=inside("data_stuck"), within_s=90,
          order="data_stuck"),
    # Cores and memory.
    Fault(key="rank_held_back", name="rank held back to 70 % of its core", says="rank {rank} gets 70 % of the core it uses",
          kinds=("slow_rank", "held_back"),
          strike=lambda ground, rank: cores.hold_back(ground, rank, 0.7), within_s=90, needs=(Need.ROOT, Need.GROUPS), learned=True, stands=True),
    Fault(key="data_slow", name="data slow on all ranks", says="data comes slowly on all ranks", kinds=("data_stall",),
          strike=everywhere("data_slow", for_s=45), aim=Aim.ALL, culprit="", order="data_slow", learned=True, stands=True),
    Fault(key="memory_leak", name="memory leak", says="rank {rank} leaks memory", kinds=("memory_leak", "memory_running_out"), strike=inside("leak", for_s=100),
          within_s=120, order="leak", needs=(Need.LIMIT,), learned=True, stands=True),
    Fault(key="out_of_memory", name="out of memory", says="rank {rank} takes memory until there is none", kinds=("out_of_memory",),
          strike=inside("out_of_memory"), order="out_of_memory", needs=(Need.LIMIT,)),
    # Disks.
    Fault(key="disk_full", name="disk full", says="the disk of the checkpoints is full", kinds=_FULL, strike=disks.fill, aim=Aim.ALL, culprit="",
          within_s=90, needs=(Need.DISK,), stands=True, ruins=True),
    Fault(key="disk_slow", name="disk slow", says="the disk of the checkpoints takes one write a second", kinds=("slow_disk", "slow_save", "rule:DiskSlow"),
          strike=lambda ground, rank: disks.slow_down(ground, rank, 1), aim=Aim.ALL, culprit="", within_s=240, lasts_s=90,
          needs=(Need.DISK, Need.THROTTLE), stands=True, ruins=True),
    # Networks.
    Fault(key="packets_lost", name="packets lost", says="5 of 100 packets to {node} are lost", kinds=_SLOW_NETWORK,
          strike=lambda ground, rank: network.lose_packets(ground, rank, 5), aim=Aim.NODE, culprit="", within_s=120, needs=(Need.ROOT, Need.NETWORK),
          program="tc", learned=True, stands=True),
    Fault(key="link_narrowed", name="link narrowed", says="the link of {node} passes 4 Mbit/s", kinds=_SLOW_NETWORK,
          strike=lambda ground, rank: network.narrow(ground, rank, 4000), aim=Aim.NODE, culprit="", within_s=90, needs=(Need.ROOT, Need.NETWORK), program="tc",
          learned=True, stands=True),
    Fault(key="packets_delayed", name="packets delayed", says="what {node} sends arrives 40 ms later", kinds=_SLOW_NETWORK,
          strike=lambda ground, rank: network.delay(ground, rank, 40), aim=Aim.NODE, culprit="", within_s=90, needs=(Need.ROOT, Need.NETWORK), learned=True,
          stands=True),
    Fault(key="node_cut_off", name="node cut off", says="no packet reaches {node}", kinds=("network", "hang", "node_lost"),
          strike=lambda ground, rank: network.lose_packets(ground, rank, 100), aim=Aim.NODE, culprit="", within_s=120, needs=(Need.ROOT, Need.NETWORK),
          program="tc"),
    # Clocks.
    Fault(key="clock_shifted", name="clock set forward by an hour", says="the clock of {node} is set forward by an hour",
          kinds=("clock_jump", "rule:ClockJump"), strike=lambda ground, rank: clock.shift(ground, rank, 3600.0), aim=Aim.NODE, culprit="node",
          needs=(Need.NETWORK, Need.CLOCK), program="gcc", stands=True),
    # Training.
    Fault(key="nan_in_data", name="NaN in a rank's data", says="NaN in the data of rank {rank}", kinds=("not_finite",), strike=inside("nan_from_data", for_s=1),
          within_s=20, order="nan_from_data", ruins=True),
    Fault(key="nan_from_rank", name="NaN from a faulty rank", says="rank {rank} computes NaN", kinds=("not_finite",), strike=inside("nan_from_rank", for_s=1),
          within_s=20, order="nan_from_rank", ruins=True),
    Fault(key="bit_flip", name="parameter flipped on one rank", says="a parameter of rank {rank} is changed", kinds=("replicas_disagree",),
          strike=inside("bit_flip"), order="bit_flip", ruins=True),
    Fault(key="loss_spike", name="loss spike", says="all ranks see data that is 40 times too large", kinds=("loss_jump", "gradient_explosion"),
          strike=everywhere("loss_spike", for_s=25), aim=Aim.ALL, culprit="", within_s=40, order="loss_spike", ruins=True, learned=True),
    Fault(key="rate_too_high", name="learning rate too high", says="all ranks get a learning rate of 5",
          kinds=("loss_jump", "gradient_explosion", "not_finite"), strike=everywhere("rate_too_high", for_s=25), aim=Aim.ALL, culprit="", within_s=40,
          order="rate_too_high", ruins=True, learned=True),
    Fault(key="wrong_labels", name="wrong labels midway", says="all ranks get wrong labels", kinds=("loss_jump",), strike=everywhere("wrong_labels", for_s=30),
          aim=Aim.ALL, culprit="", within_s=40, order="wrong_labels", ruins=True, learned=True),
    Fault(key="log_flood", name="log flood", says="rank {rank} prints a megabyte a step", kinds=("log_flood", "rule:LogFlood"),
          strike=inside("log_flood", for_s=120), within_s=150, order="log_flood", stands=True),
)  # fmt: skip
FAULTS: dict[str, Fault] = {fault.key: fault for fault in _ALL}
