"""The goodput model: how fast a job would train, and how much it would learn, on any configuration.

=====================  ===================================================================================
``throughput``         step times: Pollux's model and ours
``profile``            what a job has measured
``priors`` ``fit``     models fitted to measurements, thousands of jobs at once
``efficiency``         how much a sample is worth at a larger batch size
``noise``              estimating that from gradient norms while training
``learning_rate``      learning-rate rules for changed batch sizes
``batchplan``          the best batch plan on one configuration: the definition
``table``              the same for all jobs and configurations at once
``transfer``           carrying a fit over to another GPU type
``planmodel``          step times under execution plans: sharded, split, checkpointed, offloaded
``planfit``            that model fitted to measurements, with what similar jobs know
``memory``             which plans and batches fit a slot
=====================  ===================================================================================
"""
