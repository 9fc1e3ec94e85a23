"""The second system-call filter, of the container tier, on top of `seccomp`'s: what namespaces keep apart elsewhere.

Here programs share user id, process ids, network and file system with their node, so whatever reaches another
process or the network by name must be refused, and whatever makes a process that would outlive its call. Made for each
process, since its own id is part of it.
"""

from sandbox.backend.forkserver.seccomp import Assembler

_CLONE, _CLONE_THREAD = 56, 0x10000
_KILL, _TGKILL, _PRCTL, _SOCKETPAIR, _PRLIMIT, _SET_AFFINITY = 62, 234, 157, 53, 302, 203
_FCNTL, _IOCTL = 72, 16
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _FIOSETOWN, _SIOCSPGRP = 8, 10, 15, 0x8901, 0x8902
_STREAM, _SEQPACKET = 1, 5
_PR_SET_PDEATHSIG = 1

_REFUSED: dict[str, tuple[int, ...]] = {
    "new processes": (57, 58),  # fork vfork
    "other programs": (59, 322),  # execve execveat
    "the network": (41,),  # socket
    "signals by other ways than kill and tgkill": (200, 129, 297, 424),  # tkill rt_*sigqueueinfo pidfd_send_signal
    "watching files": (253, 294),  # inotify tells names in folders that it may not read
    "memory outside of the address space limit": (319,),  # memfd_create
    "limits of others": (141,),  # setpriority
}
# Landlock has no say in these, and the node's user owns more than the scratch folder: the program is told that they
# worked, since shutil, zipfile and tarfile use them on their own copies, and nothing is done.
_PRETENDED: dict[str, tuple[int, ...]] = {
    "modes": (90, 91, 268, 452),  # chmod fchmod fchmodat fchmodat2
    "owners": (92, 93, 94, 260),  # chown fchown lchown fchownat
    "times": (132, 235, 261, 280),  # utime utimes futimesat utimensat
    "extended attributes": (188, 189, 190, 197, 198, 199),  # setxattr removexattr and their kin
}


def build(pid: int) -> bytes:
    """The filter of the process `pid`, as loadable bytes."""
    asm = Assembler()
    asm.load_number()
    for numbers in _REFUSED.values():
        for number in numbers:
            asm.refuse(number)
    for numbers in _PRETENDED.values():
        for number in numbers:
            asm.refuse(number, error=0)
    asm.refuse_unless(_CLONE, 0, (_CLONE_THREAD,), mask=_CLONE_THREAD)
    for number in (_KILL, _TGKILL):
        asm.refuse_unless(number, 0, (pid,))
    for number in (_PRLIMIT, _SET_AFFINITY):
        asm.refuse_unless(number, 0, (0, pid))
    for command in (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX):  # the kernel would send signals in the program's place
        asm.refuse_if_equal(_FCNTL, 1, command)
    for command in (_FIOSETOWN, _SIOCSPGRP):
        asm.refuse_if_equal(_IOCTL, 1, command)
    asm.refuse_unless(_SOCKETPAIR, 1, (_STREAM, _SEQPACKET), mask=0xF)  # a datagram may name another receiver
    asm.refuse_if_equal(_PRCTL, 0, _PR_SET_PDEATHSIG)  # it has to die with its zygote
    asm.allow()
    return asm.program()
