//! Files of /proc/net that are about no single socket: counters, protocols, groups, routes, who
//! takes which packets. There is one interface, whose packets are never made, so most stand still.
//! Neighbour: `net.rs`, about sockets.

use abi::Result;

use super::net::{count_of, sockets};
use crate::fs::pseudo::Text;

/// What netstat(8) shows beside the counters of RFC 1213: nothing of it ever happens here.
pub(super) fn netstat(out: &mut Text) -> Result<()> {
    const TCP: &str = "SyncookiesSent SyncookiesRecv SyncookiesFailed EmbryonicRsts PruneCalled \
        RcvPruned OfoPruned OutOfWindowIcmps LockDroppedIcmps ArpFilter TW TWRecycled TWKilled \
        PAWSActive PAWSEstab DelayedACKs DelayedACKLocked DelayedACKLost ListenOverflows \
        ListenDrops TCPHPHits TCPPureAcks TCPHPAcks TCPRenoRecovery TCPSackRecovery \
        TCPSACKReneging TCPSACKReorder TCPRenoReorder TCPTSReorder TCPFullUndo TCPPartialUndo \
        TCPDSACKUndo TCPLossUndo TCPLostRetransmit TCPRenoFailures TCPSackFailures \
        TCPLossFailures TCPFastRetrans TCPSlowStartRetrans TCPTimeouts TCPLossProbes \
        TCPLossProbeRecovery TCPRenoRecoveryFail TCPSackRecoveryFail TCPRcvCollapsed \
        TCPBacklogCoalesce TCPDSACKOldSent TCPDSACKOfoSent TCPDSACKRecv TCPDSACKOfoRecv \
        TCPAbortOnData TCPAbortOnClose TCPAbortOnMemory TCPAbortOnTimeout TCPAbortOnLinger \
        TCPAbortFailed TCPMemoryPressures TCPMemoryPressuresChrono TCPSACKDiscard \
        TCPDSACKIgnoredOld TCPDSACKIgnoredNoUndo TCPSpuriousRTOs TCPMD5NotFound \
        TCPMD5Unexpected TCPMD5Failure TCPSackShifted TCPSackMerged TCPSackShiftFallback \
        TCPBacklogDrop PFMemallocDrop TCPMinTTLDrop TCPDeferAcceptDrop IPReversePathFilter \
        TCPTimeWaitOverflow TCPReqQFullDoCookies TCPReqQFullDrop TCPRetransFail TCPRcvCoalesce \
        TCPOFOQueue TCPOFODrop TCPOFOMerge TCPChallengeACK TCPSYNChallenge TCPFastOpenActive \
        TCPFastOpenActiveFail TCPFastOpenPassive TCPFastOpenPassiveFail \
        TCPFastOpenListenOverflow TCPFastOpenCookieReqd TCPFastOpenBlackhole \
        TCPSpuriousRtxHostQueues BusyPollRxPackets TCPAutoCorking TCPFromZeroWindowAdv \
        TCPToZeroWindowAdv TCPWantZeroWindowAdv TCPSynRetrans TCPOrigDataSent \
        TCPHystartTrainDetect TCPHystartTrainCwnd TCPHystartDelayDetect TCPHystartDelayCwnd \
        TCPACKSkippedSynRecv TCPACKSkippedPAWS TCPACKSkippedSeq TCPACKSkippedFinWait2 \
        TCPACKSkippedTimeWait TCPACKSkippedChallenge TCPWinProbe TCPKeepAlive TCPMTUPFail \
        TCPMTUPSuccess TCPDelivered TCPDeliveredCE TCPAckCompressed TCPZeroWindowDrop \
        TCPRcvQDrop TCPWqueueTooBig TCPFastOpenPassiveAltKey TcpTimeoutRehash \
        TcpDuplicateDataRehash TCPDSACKRecvSegs TCPDSACKIgnoredDubious TCPMigrateReqSuccess \
        TCPMigrateReqFailure TCPPLBRehash TCPAORequired TCPAOBad TCPAOKeyNotFound TCPAOGood \
        TCPAODroppedIcmps";
    const IP: &str = "InNoRoutes InTruncatedPkts InMcastPkts OutMcastPkts InBcastPkts OutBcastPkts \
        InOctets OutOctets InMcastOctets OutMcastOctets InBcastOctets OutBcastOctets InCsumErrors \
        InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts ReasmOverlaps";
    for (table, names) in [("TcpExt", TCP), ("IpExt", IP)] {
        let count = names.split_ascii_whitespace().count();
        write!(out, "{table}: {names}\n{table}:");
        (0..count).for_each(|_| out.bytes(b" 0"));
        out.bytes(b"\n");
    }
    Ok(())
}

/// The counters of IPv6, one a line.
pub(super) fn snmp6(out: &mut Text) -> Result<()> {
    const IP: &str = "InReceives InHdrErrors InTooBigErrors InNoRoutes InAddrErrors \
        InUnknownProtos InTruncatedPkts InDiscards InDelivers OutForwDatagrams OutRequests \
        OutDiscards OutNoRoutes ReasmTimeout ReasmReqds ReasmOKs ReasmFails FragOKs FragFails \
        FragCreates InMcastPkts OutMcastPkts InOctets OutOctets InMcastOctets OutMcastOctets \
        InBcastOctets OutBcastOctets InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts OutTransmits";
    const ICMP: &str = "InMsgs InErrors OutMsgs OutErrors InCsumErrors OutRateLimitHost \
        InDestUnreachs InPktTooBigs InTimeExcds InParmProblems InEchos InEchoReplies \
        InGroupMembQueries InGroupMembResponses InGroupMembReductions InRouterSolicits \
        InRouterAdvertisements InNeighborSolicits InNeighborAdvertisements InRedirects \
        InMLDv2Reports OutDestUnreachs OutPktTooBigs OutTimeExcds OutParmProblems OutEchos \
        OutEchoReplies OutGroupMembQueries OutGroupMembResponses OutGroupMembReductions \
        OutRouterSolicits OutRouterAdvertisements OutNeighborSolicits OutNeighborAdvertisements \
        OutRedirects OutMLDv2Reports";
    const UDP: &str = "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors \
        InCsumErrors IgnoredMulti MemErrors";
    const LITE: &str = "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors \
        InCsumErrors MemErrors";
    for (table, names) in [("Ip6", IP), ("Icmp6", ICMP), ("Udp6", UDP), ("UdpLite6", LITE)] {
        for name in names.split_ascii_whitespace() {
            let width = 32 - table.len();
            writeln!(out, "{table}{name:width$}\t0");
        }
    }
    Ok(())
}

/// Which kinds of sockets there are, and how many of each.
pub(super) fn protocols(out: &mut Text) -> Result<()> {
    /// Name, size, whether there is a pool of its own for them, the header's room, and which
    /// functions it has.
    const ROWS: [(&str, u32, &str, u32, &str); 11] = [
        ("RAWv6", 1344, "NI", 0, "y y y n y y y n y y y y y y y y n n"),
        ("UDPLITEv6", 1472, "NI", 0, "y y y n y y y n y y y y n n y y y n"),
        ("UDPv6", 1472, "NI", 0, "y y y n y y y n y y y y n n y y y n"),
        ("TCPv6", 2432, "no", 192, "y y y y y y y y y y y y n y y y y y"),
        ("UNIX-STREAM", 1152, "NI", 0, "y n n n n n n n n n n n n n n n n n"),
        ("UNIX", 1152, "NI", 0, "y n n n n n n n n n n n n n n n n n"),
        ("UDP-Lite", 1344, "NI", 0, "y y y n y y y n y y y y n n y y y n"),
        ("RAW", 1152, "NI", 0, "y y y n y y y n y y y y y y y y n n"),
        ("UDP", 1344, "NI", 0, "y y y n y y y n y y y y n n y y y n"),
        ("TCP", 2304, "no", 192, "y y y y y y y y y y y y n y y y y y"),
        ("NETLINK", 1096, "NI", 0, "n n n n n n n n n n n n n n n n n n"),
    ];
    out.bytes(b"protocol  size sockets  memory press maxhdr  slab module     ");
    out.bytes(b"cl co di ac io in de sh ss gs se re bi br ha uh gp em\n");
    let sockets = sockets();
    for (name, size, pressed, header, functions) in ROWS {
        let open = count_of(&sockets, name);
        let memory = if name.contains("TCP") || name.contains("UDP") { 0 } else { -1 };
        let slab = if name == "NETLINK" { "no" } else { "yes" };
        write!(
            out,
            "{name:<9} {size:4} {open:6}  {memory:6}   {pressed:<3} {header:6}   {slab:<3}"
        );
        write!(out, "  {:<10} ", "kernel");
        functions.split(' ').for_each(|has| write!(out, " {has} "));
        out.0.pop();
        out.bytes(b"\n");
    }
    Ok(())
}

/// The groups that the one interface belongs to by itself: all hosts.
pub(super) fn igmp(out: &mut Text) -> Result<()> {
    out.bytes(b"Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n");
    out.bytes(b"1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n");
    Ok(())
}

pub(super) fn igmp6(out: &mut Text) -> Result<()> {
    for (group, flags) in [("ff02", 0xc), ("ff01", 8)] {
        writeln!(out, "{:<4} {:<15} {group}{:028x} {:5} {flags:08X} 0", 1, "lo", 1, 1);
    }
    Ok(())
}

pub(super) fn sources(out: &mut Text) -> Result<()> {
    out.bytes(b"Idx Device        MCA        SRC    INC    EXC\n");
    Ok(())
}

pub(super) fn sources6(out: &mut Text) -> Result<()> {
    out.bytes(b"Idx Device                Multicast Address                   Source Address");
    out.bytes(b"    INC    EXC\n");
    Ok(())
}

pub(super) fn flow_labels(out: &mut Text) -> Result<()> {
    out.bytes(b"Label S Owner  Users  Linger Expires  Dst                              Opt\n");
    Ok(())
}

/// One route: to the machine's own address.
pub(super) fn ipv6_route(out: &mut Text) -> Result<()> {
    /// RTF_UP, RTF_NONEXTHOP and RTF_LOCAL.
    const FLAGS: u32 = 0x8020_0001;
    write!(out, "{:032x} 80 {:032x} 00 {:032x} ", 1, 0, 0);
    writeln!(out, "{:08x} 00000002 {:08x} {FLAGS:08x} {:>8}", 0, 0, "lo");
    Ok(())
}

pub(super) fn rt_cache(out: &mut Text) -> Result<()> {
    let names = "Iface\tDestination\tGateway \tFlags\t\tRefCnt\tUse\tMetric\tSource\t\t\
        MTU\tWindow\tIRTT\tTOS\tHHRef\tHHUptod\tSpecDst";
    writeln!(out, "{names:<127}");
    Ok(())
}

pub(super) fn netlink(out: &mut Text) -> Result<()> {
    out.bytes(b"sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops");
    out.bytes(b"    Inode\n");
    Ok(())
}

pub(super) fn packet(out: &mut Text) -> Result<()> {
    out.bytes(b"sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n");
    Ok(())
}

/// Units of the clocks that packets would be scheduled by: nanoseconds of its, and per second.
pub(super) fn psched(out: &mut Text) -> Result<()> {
    out.bytes(b"000003e8 00000040 000f4240 3b9aca00\n");
    Ok(())
}

pub(super) fn ptype(out: &mut Text) -> Result<()> {
    out.bytes(b"Type Device      Function\n0800          ip_rcv\n86dd          ipv6_rcv\n");
    Ok(())
}

/// Sockets of IPv6 by kind.
pub(super) fn sockstat6(out: &mut Text) -> Result<()> {
    let sockets = sockets();
    let kinds = ["TCPv6", "UDPv6", "UDPLITEv6", "RAWv6"];
    for (kind, name) in kinds.iter().zip(["TCP6", "UDP6", "UDPLITE6", "RAW6"]) {
        writeln!(out, "{name}: inuse {}", count_of(&sockets, kind));
    }
    out.bytes(b"FRAG6: inuse 0 memory 0\n");
    Ok(())
}

/// A line for each CPU: what it has taken from devices, of which there are none.
pub(super) fn softnet_stat(out: &mut Text) -> Result<()> {
    const ZEROS: usize = 12;
    for cpu in 0..machine::cpu::cpu_count() {
        (0..ZEROS).for_each(|_| out.bytes(b"00000000 "));
        writeln!(out, "{cpu:08x} 00000000 00000000");
    }
    Ok(())
}
