"""The fields of Kubernetes objects, and of those of Kubeflow and JobSet, with their types: what the API server accepts.

Sources: the OpenAPI documents of Kubernetes 1.37 (as the models of its Python client have them), of kubeflow/trainer 1.9 and 2.3,
and of kubernetes-sigs/jobset; MPIJob: kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["LENIENT", "ROOTS", "known_names", "object_fields"]

ROOTS = {
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "Pod": "v1",
    "Service": "v1",
    "ConfigMap": "v1",
    "PersistentVolumeClaim": "v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
    "PyTorchJob": "kubeflow.org/v1",
    "MPIJob": "kubeflow.org/v2beta1",
}
"""Kinds whose fields are known, each with its API version; MPIJob also has older ones."""
LENIENT = frozenset(("JobSet", "TrainJob", "PyTorchJob", "MPIJob"))
"""Those that get new fields more often than this table: an unknown field counts only if it is one of another place, or
nearly one of this."""


@lru_cache(maxsize=1)
def object_fields() -> dict[str, dict[str, str]]:
    """The fields of each type, each with its type: s text, i whole number, b true or false, q a quantity, * anything,
    [T] a list, {T} a mapping with any keys, or the name of a type.
    """
    found: dict[str, dict[str, str]] = {}
    for row in _FIELDS.strip().replace("\n  ", " ").split("\n"):
        name, *fields = row.split()
        found[name] = dict(field.split(":", 1) for field in fields)
    return found


@lru_cache(maxsize=1)
def known_names() -> frozenset[str]:
    """Every field of every type."""
    return frozenset(name for fields in object_fields().values() for name in fields)


_FIELDS = """
AWSElasticBlockStoreVolumeSource fsType:s partition:i readOnly:b volumeID:s
Affinity nodeAffinity:NodeAffinity podAffinity:PodAffinity podAntiAffinity:PodAntiAffinity
AppArmorProfile localhostProfile:s type:s
AzureDiskVolumeSource cachingMode:s diskName:s diskURI:s fsType:s kind:s readOnly:b
AzureFileVolumeSource readOnly:b secretName:s shareName:s
CSIVolumeSource driver:s fsType:s nodePublishSecretRef:LocalObjectReference readOnly:b volumeAttributes:{s}
Capabilities add:[s] drop:[s]
CephFSVolumeSource monitors:[s] path:s readOnly:b secretFile:s secretRef:LocalObjectReference user:s
CinderVolumeSource fsType:s readOnly:b secretRef:LocalObjectReference volumeID:s
ClientIPConfig timeoutSeconds:i
ClusterTrustBundleProjection labelSelector:LabelSelector name:s optional:b path:s signerName:s user:i
ConfigMap apiVersion:s binaryData:{*} data:{s} immutable:b kind:s metadata:ObjectMeta
ConfigMapEnvSource name:s optional:b
ConfigMapKeySelector key:s name:s optional:b
ConfigMapProjection items:[KeyToPath] name:s optional:b
ConfigMapVolumeSource defaultMode:i defaultUser:i items:[KeyToPath] name:s optional:b
Container args:[s] command:[s] env:[EnvVar] envFrom:[EnvFromSource] image:s imagePullPolicy:s lifecycle:Lifecycle
  livenessProbe:Probe name:s ports:[ContainerPort] readinessProbe:Probe resizePolicy:[ContainerResizePolicy]
  resources:ResourceRequirements restartPolicy:s restartPolicyRules:[ContainerRestartRule]
  securityContext:SecurityContext startupProbe:Probe stdin:b stdinOnce:b terminationMessagePath:s
  terminationMessagePolicy:s tty:b volumeDevices:[VolumeDevice] volumeMounts:[VolumeMount] workingDir:s
ContainerPatch env:[*] name:s securityContext:* volumeMounts:[*]
ContainerPort containerPort:i hostIP:s hostPort:i name:s protocol:s
ContainerResizePolicy resourceName:s restartPolicy:s
ContainerRestartRule action:s exitCodes:ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes operator:s values:[i]
Coordinator jobIndex:i podIndex:i replicatedJob:s
CronJob apiVersion:s kind:s metadata:ObjectMeta spec:CronJobSpec status:*
CronJobSpec concurrencyPolicy:s failedJobsHistoryLimit:i jobTemplate:JobTemplateSpec schedule:s
  startingDeadlineSeconds:i successfulJobsHistoryLimit:i suspend:b timeZone:s
DaemonSet apiVersion:s kind:s metadata:ObjectMeta spec:DaemonSetSpec status:*
DaemonSetSpec minReadySeconds:i revisionHistoryLimit:i selector:LabelSelector template:PodTemplateSpec
  updateStrategy:DaemonSetUpdateStrategy
DaemonSetUpdateStrategy rollingUpdate:RollingUpdateDaemonSet type:s
DatasetInitializer env:[*] secretRef:* storageUri:s
DependsOn name:s status:s
Deployment apiVersion:s kind:s metadata:ObjectMeta spec:DeploymentSpec status:*
DeploymentSpec minReadySeconds:i paused:b progressDeadlineSeconds:i replicas:i revisionHistoryLimit:i
  selector:LabelSelector strategy:DeploymentStrategy template:PodTemplateSpec
DeploymentStrategy rollingUpdate:RollingUpdateDeployment type:s
DownwardAPIProjection items:[DownwardAPIVolumeFile]
DownwardAPIVolumeFile fieldRef:ObjectFieldSelector mode:i path:s resourceFieldRef:ResourceFieldSelector user:i
DownwardAPIVolumeSource defaultMode:i defaultUser:i items:[DownwardAPIVolumeFile]
ElasticPolicy maxReplicas:i maxRestarts:i metrics:[*] minReplicas:i nProcPerNode:i rdzvBackend:s rdzvConf:* rdzvHost:s
  rdzvId:s rdzvPort:i standalone:b
EmptyDirVolumeSource medium:s mode:i sizeLimit:q
EnvFromSource configMapRef:ConfigMapEnvSource prefix:s secretRef:SecretEnvSource
EnvVar name:s value:s valueFrom:EnvVarSource
EnvVarSource configMapKeyRef:ConfigMapKeySelector fieldRef:ObjectFieldSelector fileKeyRef:FileKeySelector
  resourceFieldRef:ResourceFieldSelector secretKeyRef:SecretKeySelector
EphemeralContainer args:[s] command:[s] env:[EnvVar] envFrom:[EnvFromSource] image:s imagePullPolicy:s
  lifecycle:Lifecycle livenessProbe:Probe name:s ports:[ContainerPort] readinessProbe:Probe
  resizePolicy:[ContainerResizePolicy] resources:ResourceRequirements restartPolicy:s
  restartPolicyRules:[ContainerRestartRule] securityContext:SecurityContext startupProbe:Probe stdin:b stdinOnce:b
  targetContainerName:s terminationMessagePath:s terminationMessagePolicy:s tty:b volumeDevices:[VolumeDevice]
  volumeMounts:[VolumeMount] workingDir:s
EphemeralVolumeSource volumeClaimTemplate:PersistentVolumeClaimTemplate
EvictionResponder name:s priority:i
ExecAction command:[s]
FCVolumeSource fsType:s lun:i readOnly:b targetWWNs:[s] wwids:[s]
FailurePolicy maxRestarts:i restartStrategy:s rules:[FailurePolicyRule]
FailurePolicyRule action:s name:s onJobFailureMessagePatterns:[s] onJobFailureReasons:[s] targetReplicatedJobs:[s]
FileKeySelector key:s optional:b path:s volumeName:s
FlexVolumeSource driver:s fsType:s options:{s} readOnly:b secretRef:LocalObjectReference
FlockerVolumeSource datasetName:s datasetUUID:s
GCEPersistentDiskVolumeSource fsType:s partition:i pdName:s readOnly:b
GRPCAction mode:s port:i service:s
GitRepoVolumeSource directory:s repository:s revision:s
GlusterfsVolumeSource endpoints:s path:s readOnly:b
HTTPGetAction host:s httpHeaders:[HTTPHeader] path:s port:* protocol:s scheme:s
HTTPHeader name:s value:s
HostAlias hostnames:[s] ip:s
HostPathVolumeSource path:s type:s
ISCSIVolumeSource chapAuthDiscovery:b chapAuthSession:b fsType:s initiatorName:s iqn:s iscsiInterface:s lun:i
  portals:[s] readOnly:b secretRef:LocalObjectReference targetPortal:s
ImageVolumeSource pullPolicy:s reference:s
Initializer dataset:DatasetInitializer model:ModelInitializer
Job apiVersion:s kind:s metadata:ObjectMeta spec:JobSpec status:*
JobSchedulingConfiguration disruptionMode:alpha3WorkloadPodGroupDisruptionMode
  resourceClaims:[alpha3WorkloadPodGroupResourceClaim]
  schedulingConstraints:alpha3WorkloadPodGroupSchedulingConstraints
  schedulingPolicy:alpha3WorkloadPodGroupSchedulingPolicy
JobSet apiVersion:s kind:s metadata:* spec:JobSetSpec status:*
JobSetSpec coordinator:Coordinator failurePolicy:FailurePolicy managedBy:s network:Network
  replicatedJobs:[ReplicatedJob] startupPolicy:StartupPolicy successPolicy:SuccessPolicy suspend:b
  ttlSecondsAfterFinished:i volumeClaimPolicies:[VolumeClaimPolicy]
JobSetSpecPatch replicatedJobs:[ReplicatedJobPatch]
JobSetTemplatePatch metadata:* spec:JobSetSpecPatch
JobSpec activeDeadlineSeconds:i backoffLimit:i backoffLimitPerIndex:i completionMode:s completions:i managedBy:s
  manualSelector:b maxFailedIndexes:i parallelism:i podFailurePolicy:PodFailurePolicy podReplacementPolicy:s
  scheduling:JobSchedulingConfiguration selector:LabelSelector successPolicy:SuccessPolicy suspend:b
  template:PodTemplateSpec ttlSecondsAfterFinished:i
JobSpecPatch template:PodTemplatePatch
JobTemplatePatch metadata:* spec:JobSpecPatch
JobTemplateSpec metadata:ObjectMeta spec:JobSpec
KeyToPath key:s mode:i path:s user:i
LabelSelector matchExpressions:[LabelSelectorRequirement] matchLabels:{s}
LabelSelectorRequirement key:s operator:s values:[s]
Lifecycle postStart:LifecycleHandler preStop:LifecycleHandler stopSignal:s
LifecycleHandler _exec:ExecAction httpGet:HTTPGetAction sleep:SleepAction tcpSocket:TCPSocketAction
LocalObjectReference name:s
MPIJob apiVersion:s kind:s metadata:ObjectMeta spec:MPIJobSpec status:*
MPIJobSpec cleanPodPolicy:s launcherCreationPolicy:s mainContainer:s mpiImplementation:s mpiReplicaSpecs:{ReplicaSpec}
  runLauncherAsWorker:b runPolicy:RunPolicy slotsPerWorker:i sshAuthMountPath:s
ModelInitializer env:[*] secretRef:* storageUri:s
NFSVolumeSource path:s readOnly:b server:s
Network enableDNSHostnames:b publishNotReadyAddresses:b subdomain:s
NodeAffinity preferredDuringSchedulingIgnoredDuringExecution:[PreferredSchedulingTerm]
  requiredDuringSchedulingIgnoredDuringExecution:NodeSelector
NodeSelector nodeSelectorTerms:[NodeSelectorTerm]
NodeSelectorRequirement key:s operator:s values:[s]
NodeSelectorTerm matchExpressions:[NodeSelectorRequirement] matchFields:[NodeSelectorRequirement]
ObjectFieldSelector apiVersion:s fieldPath:s
ObjectMeta annotations:{s} creationTimestamp:* deletionGracePeriodSeconds:i deletionTimestamp:* finalizers:[s]
  generateName:s generation:i labels:{s} managedFields:[*] name:s namespace:s ownerReferences:[*] resourceVersion:s
  selfLink:s uid:s
PersistentVolumeClaim apiVersion:s kind:s metadata:ObjectMeta spec:PersistentVolumeClaimSpec status:*
PersistentVolumeClaimSpec accessModes:[s] dataSource:TypedLocalObjectReference dataSourceRef:TypedObjectReference
  resources:VolumeResourceRequirements selector:LabelSelector storageClassName:s volumeAttributesClassName:s
  volumeMode:s volumeName:s
PersistentVolumeClaimTemplate metadata:ObjectMeta spec:PersistentVolumeClaimSpec
PersistentVolumeClaimVolumeSource claimName:s readOnly:b
PhotonPersistentDiskVolumeSource fsType:s pdID:s
Pod apiVersion:s kind:s metadata:ObjectMeta spec:PodSpec status:*
PodAffinity preferredDuringSchedulingIgnoredDuringExecution:[WeightedPodAffinityTerm]
  requiredDuringSchedulingIgnoredDuringExecution:[PodAffinityTerm]
PodAffinityTerm labelSelector:LabelSelector matchLabelKeys:[s] mismatchLabelKeys:[s] namespaceSelector:LabelSelector
  namespaces:[s] topologyKey:s
PodAntiAffinity preferredDuringSchedulingIgnoredDuringExecution:[WeightedPodAffinityTerm]
  requiredDuringSchedulingIgnoredDuringExecution:[PodAffinityTerm]
PodCertificateProjection certificateChainPath:s credentialBundlePath:s keyPath:s keyType:s maxExpirationSeconds:i
  signerName:s user:i userAnnotations:{s}
PodDNSConfig nameservers:[s] options:[PodDNSConfigOption] searches:[s]
PodDNSConfigOption name:s value:s
PodFailurePolicy rules:[PodFailurePolicyRule]
PodFailurePolicyOnExitCodesRequirement containerName:s operator:s values:[i]
PodFailurePolicyOnPodConditionsPattern status:s type:s
PodFailurePolicyRule action:s onExitCodes:PodFailurePolicyOnExitCodesRequirement
  onPodConditions:[PodFailurePolicyOnPodConditionsPattern]
PodOS name:s
PodReadinessGate conditionType:s
PodResourceClaim name:s resourceClaimName:s resourceClaimTemplateName:s
PodSchedulingGate name:s
PodSchedulingGroup podGroupName:s
PodSecurityContext appArmorProfile:AppArmorProfile fsGroup:i fsGroupChangePolicy:s runAsGroup:i runAsNonRoot:b
  runAsUser:i seLinuxChangePolicy:s seLinuxOptions:SELinuxOptions seccompProfile:SeccompProfile supplementalGroups:[i]
  supplementalGroupsPolicy:s sysctls:[Sysctl] windowsOptions:WindowsSecurityContextOptions
PodSpec activeDeadlineSeconds:i affinity:Affinity automountServiceAccountToken:b containers:[Container]
  dnsConfig:PodDNSConfig dnsPolicy:s enableServiceLinks:b ephemeralContainers:[EphemeralContainer]
  evictionResponders:[EvictionResponder] hostAliases:[HostAlias] hostIPC:b hostNetwork:b hostPID:b hostUsers:b
  hostname:s hostnameOverride:s imagePullSecrets:[LocalObjectReference] initContainers:[Container] nodeName:s
  nodeSelector:{s} os:PodOS overhead:{s} preemptionPolicy:s priority:i priorityClassName:s
  readinessGates:[PodReadinessGate] resourceClaims:[PodResourceClaim] resources:ResourceRequirements restartPolicy:s
  runtimeClassName:s schedulerName:s schedulingGates:[PodSchedulingGate] schedulingGroup:PodSchedulingGroup
  securityContext:PodSecurityContext serviceAccount:s serviceAccountName:s setHostnameAsFQDN:b shareProcessNamespace:b
  subdomain:s terminationGracePeriodSeconds:i tolerations:[Toleration]
  topologySpreadConstraints:[TopologySpreadConstraint] volumes:[Volume]
PodSpecPatch affinity:* containers:[ContainerPatch] imagePullSecrets:[*] initContainers:[ContainerPatch]
  nodeSelector:{s} schedulingGates:[*] securityContext:* serviceAccountName:s terminationGracePeriodSeconds:i
  tolerations:[*] volumes:[*]
PodTemplatePatch metadata:* spec:PodSpecPatch
PodTemplateSpec metadata:ObjectMeta spec:PodSpec
PortworxVolumeSource fsType:s readOnly:b volumeID:s
PreferredSchedulingTerm preference:NodeSelectorTerm weight:i
Probe _exec:ExecAction failureThreshold:i grpc:GRPCAction httpGet:HTTPGetAction initialDelaySeconds:i periodSeconds:i
  successThreshold:i tcpSocket:TCPSocketAction terminationGracePeriodSeconds:i timeoutSeconds:i
ProjectedVolumeSource defaultMode:i defaultUser:i sources:[VolumeProjection]
PyTorchJob apiVersion:s kind:s metadata:ObjectMeta spec:PyTorchJobSpec status:*
PyTorchJobSpec elasticPolicy:ElasticPolicy nprocPerNode:s pytorchReplicaSpecs:{ReplicaSpec} runPolicy:RunPolicy
QuobyteVolumeSource group:s readOnly:b registry:s tenant:s user:s volume:s
RBDVolumeSource fsType:s image:s keyring:s monitors:[s] pool:s readOnly:b secretRef:LocalObjectReference user:s
ReplicaSet apiVersion:s kind:s metadata:ObjectMeta spec:ReplicaSetSpec status:*
ReplicaSetSpec minReadySeconds:i replicas:i selector:LabelSelector template:PodTemplateSpec
ReplicaSpec replicas:i restartPolicy:s template:PodTemplateSpec
ReplicatedJob dependsOn:[DependsOn] groupName:s name:s replicas:i template:JobTemplateSpec
ReplicatedJobPatch name:s template:JobTemplatePatch
ResourceClaim name:s request:s
ResourceFieldSelector containerName:s divisor:q resource:s
ResourceRequirements claims:[ResourceClaim] limits:{q} requests:{q}
RollingUpdateDaemonSet maxSurge:* maxUnavailable:*
RollingUpdateDeployment maxSurge:* maxUnavailable:*
RollingUpdateStatefulSetStrategy maxUnavailable:* partition:i
RunPolicy activeDeadlineSeconds:i backoffLimit:i cleanPodPolicy:s managedBy:s schedulingPolicy:SchedulingPolicy
  suspend:b ttlSecondsAfterFinished:i
RuntimePatch manager:s time:* trainingRuntimeSpec:TrainingRuntimeSpecPatch
RuntimeRef apiGroup:s kind:s name:s
SELinuxOptions level:s role:s type:s user:s
ScaleIOVolumeSource fsType:s gateway:s protectionDomain:s readOnly:b secretRef:LocalObjectReference sslEnabled:b
  storageMode:s storagePool:s system:s volumeName:s
SchedulingPolicy minAvailable:i minResources:{*} priorityClass:s queue:s scheduleTimeoutSeconds:i
SeccompProfile localhostProfile:s type:s
SecretEnvSource name:s optional:b
SecretKeySelector key:s name:s optional:b
SecretProjection items:[KeyToPath] name:s optional:b
SecretVolumeSource defaultMode:i defaultUser:i items:[KeyToPath] optional:b secretName:s
SecurityContext allowPrivilegeEscalation:b appArmorProfile:AppArmorProfile capabilities:Capabilities privileged:b
  procMount:s readOnlyRootFilesystem:b runAsGroup:i runAsNonRoot:b runAsUser:i seLinuxOptions:SELinuxOptions
  seccompProfile:SeccompProfile windowsOptions:WindowsSecurityContextOptions
Service apiVersion:s kind:s metadata:ObjectMeta spec:ServiceSpec status:*
ServiceAccountTokenProjection audience:s expirationSeconds:i path:s user:i
ServicePort appProtocol:s name:s nodePort:i port:i protocol:s targetPort:*
ServiceSpec allocateLoadBalancerNodePorts:b clusterIP:s clusterIPs:[s] externalIPs:[s] externalName:s
  externalTrafficPolicy:s healthCheckNodePort:i internalTrafficPolicy:s ipFamilies:[s] ipFamilyPolicy:s
  loadBalancerClass:s loadBalancerIP:s loadBalancerSourceRanges:[s] ports:[ServicePort] publishNotReadyAddresses:b
  selector:{s} sessionAffinity:s sessionAffinityConfig:SessionAffinityConfig trafficDistribution:s type:s
SessionAffinityConfig clientIP:ClientIPConfig
SleepAction seconds:i
StartupPolicy startupPolicyOrder:s
StatefulSet apiVersion:s kind:s metadata:ObjectMeta spec:StatefulSetSpec status:*
StatefulSetOrdinals start:i
StatefulSetPersistentVolumeClaimRetentionPolicy whenDeleted:s whenScaled:s
StatefulSetSpec minReadySeconds:i ordinals:StatefulSetOrdinals
  persistentVolumeClaimRetentionPolicy:StatefulSetPersistentVolumeClaimRetentionPolicy podManagementPolicy:s
  replicas:i revisionHistoryLimit:i selector:LabelSelector serviceName:s template:PodTemplateSpec
  updateStrategy:StatefulSetUpdateStrategy volumeClaimTemplates:[PersistentVolumeClaim]
StatefulSetUpdateStrategy rollingUpdate:RollingUpdateStatefulSetStrategy type:s
StorageOSVolumeSource fsType:s readOnly:b secretRef:LocalObjectReference volumeName:s volumeNamespace:s
SuccessPolicy rules:[SuccessPolicyRule]
SuccessPolicyRule succeededCount:i succeededIndexes:s
Sysctl name:s value:s
TCPSocketAction host:s port:*
Toleration effect:s key:s operator:s tolerationSeconds:i value:s
TopologySpreadConstraint labelSelector:LabelSelector matchLabelKeys:[s] maxSkew:i minDomains:i nodeAffinityPolicy:s
  nodeTaintsPolicy:s topologyKey:s whenUnsatisfiable:s
TrainJob apiVersion:s kind:s metadata:* spec:TrainJobSpec status:*
TrainJobSpec activeDeadlineSeconds:i annotations:* initializer:Initializer labels:* managedBy:s podSpecOverrides:*
  podTemplateOverrides:* runtimePatches:[RuntimePatch] runtimeRef:RuntimeRef suspend:b trainer:Trainer
Trainer args:[s] command:[s] env:[EnvVar] image:s numNodes:i numProcPerNode:* resourcesPerNode:ResourceRequirements
TrainingRuntimeSpecPatch template:JobSetTemplatePatch
TypedLocalObjectReference apiGroup:s kind:s name:s
TypedObjectReference apiGroup:s kind:s name:s namespace:s
Volume awsElasticBlockStore:AWSElasticBlockStoreVolumeSource azureDisk:AzureDiskVolumeSource
  azureFile:AzureFileVolumeSource cephfs:CephFSVolumeSource cinder:CinderVolumeSource configMap:ConfigMapVolumeSource
  csi:CSIVolumeSource downwardAPI:DownwardAPIVolumeSource emptyDir:EmptyDirVolumeSource
  ephemeral:EphemeralVolumeSource fc:FCVolumeSource flexVolume:FlexVolumeSource flocker:FlockerVolumeSource
  gcePersistentDisk:GCEPersistentDiskVolumeSource gitRepo:GitRepoVolumeSource glusterfs:GlusterfsVolumeSource
  hostPath:HostPathVolumeSource image:ImageVolumeSource iscsi:ISCSIVolumeSource name:s nfs:NFSVolumeSource
  persistentVolumeClaim:PersistentVolumeClaimVolumeSource photonPersistentDisk:PhotonPersistentDiskVolumeSource
  portworxVolume:PortworxVolumeSource projected:ProjectedVolumeSource quobyte:QuobyteVolumeSource rbd:RBDVolumeSource
  scaleIO:ScaleIOVolumeSource secret:SecretVolumeSource storageos:StorageOSVolumeSource
  vsphereVolume:VsphereVirtualDiskVolumeSource
VolumeClaimPolicy retentionPolicy:VolumeRetentionPolicy templates:[*]
VolumeDevice devicePath:s name:s
VolumeMount bindMountOptions:[s] mountPath:s mountPropagation:s name:s readOnly:b recursiveReadOnly:s subPath:s
  subPathExpr:s
VolumeProjection clusterTrustBundle:ClusterTrustBundleProjection configMap:ConfigMapProjection
  downwardAPI:DownwardAPIProjection podCertificate:PodCertificateProjection secret:SecretProjection
  serviceAccountToken:ServiceAccountTokenProjection
VolumeResourceRequirements limits:{q} requests:{q}
VolumeRetentionPolicy whenDeleted:s
VsphereVirtualDiskVolumeSource fsType:s storagePolicyID:s storagePolicyName:s volumePath:s
WeightedPodAffinityTerm podAffinityTerm:PodAffinityTerm weight:i
WindowsSecurityContextOptions gmsaCredentialSpec:s gmsaCredentialSpecName:s hostProcess:b runAsUserName:s
alpha3TopologyConstraint key:s
alpha3WorkloadPodGroupDisruptionMode all:{*} single:{*}
alpha3WorkloadPodGroupGangSchedulingPolicy minCount:i
alpha3WorkloadPodGroupResourceClaim name:s resourceClaimName:s resourceClaimTemplateName:s
alpha3WorkloadPodGroupSchedulingConstraints topology:[alpha3TopologyConstraint]
alpha3WorkloadPodGroupSchedulingPolicy basic:{*} gang:alpha3WorkloadPodGroupGangSchedulingPolicy
"""
